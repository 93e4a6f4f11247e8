/* device.h: the objects behind the handles of mtlq.h, and what a device has to provide.
 *
 * shim/ checks arguments, keeps ids, references and page tables; a backend (cpu/) does the work. */
#ifndef MTLQ_DEVICE_H
#define MTLQ_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "mtlq.h"

typedef struct mtlq_backend mtlq_backend;

typedef enum mtlq_kind {
    MTLQ_KIND_BUFFER,
    MTLQ_KIND_HEAP,
    MTLQ_KIND_LIBRARY,
    MTLQ_KIND_PIPELINE,
    MTLQ_KIND_PLAN,
    MTLQ_KIND_ENCODER,
} mtlq_kind;

/* First member of everything that a device owns. */
typedef struct mtlq_object {
    mtlq_device *device;
    mtlq_kind kind;
    uint32_t id;
    uint32_t num_refs; /* the caller's handle, and each plan or object that uses it */
    void (*destroy)(struct mtlq_object *object);
} mtlq_object;

struct mtlq_device {
    const mtlq_backend *backend;
    void *state; /* of the backend */
    pthread_mutex_t mutex;
    uint32_t flags;
    bool lost;
    uint32_t num_users; /* the caller's handle, and each object */
    uint32_t last_id;
    mtlq_object **objects; /* ids ascending, since they are never reused */
    uint32_t num_objects;
    uint32_t max_objects;
    uint32_t num_mappings; /* of the operating system, made by buffers and heaps */
    uint32_t max_mappings; /* 0 = unlimited */
    uint32_t page_bytes;   /* sparse pages are multiples of this */
    bool has_page_tables;  /* kernels see sparse buffers as tables of addresses */
    uint64_t max_buffer_bytes;
};

typedef enum mtlq_memory { MTLQ_SHARED, MTLQ_WRAPPED, MTLQ_SPARSE } mtlq_memory;

typedef struct mtlq_page {
    mtlq_heap *heap; /* NULL: nothing is mapped */
    uint64_t heap_page;
} mtlq_page;

struct mtlq_buffer {
    mtlq_object object;
    mtlq_memory memory;
    uint32_t page_bytes; /* sparse */
    uint64_t num_bytes;
    uint8_t *contents; /* NULL: not addressable by the process */
    void *handle;      /* of the backend */
    bool is_created;   /* by the backend */
    mtlq_page *pages;  /* sparse: [num_bytes / page_bytes] */
};

struct mtlq_heap {
    mtlq_object object;
    uint32_t page_bytes;
    uint64_t num_bytes;
    uint8_t *contents;
    uint64_t num_mapped; /* pages of sparse buffers that show this heap */
    void *handle;        /* of the backend */
    bool is_created;     /* by the backend */
};

struct mtlq_library {
    mtlq_object object;
    void *handle; /* of the backend, NULL = none */
};

struct mtlq_pipeline {
    mtlq_object object;
    mtlq_library *library;
    const void *kernel; /* of the backend, NULL = none */
};

struct mtlq_plan {
    mtlq_object object;
    uint32_t num_dispatches;
    uint32_t num_bindings;
    mtlq_dispatch *dispatches;
    mtlq_pipeline **pipelines;   /* [num_dispatches] */
    mtlq_buffer **grid_buffers;  /* [num_dispatches], NULL where the grid is in the record */
    mtlq_binding *bindings;
    mtlq_buffer **buffers;       /* [num_bindings] */
    void **addresses;            /* [num_bindings], in this process; NULL where it has none */
    uint8_t *args;               /* 64-byte aligned */
    uint64_t *nanoseconds;       /* [num_dispatches] with MTLQ_DEVICE_PROFILE, else NULL */
};

/* Arguments were checked and the device is locked, except in wait and ticket_time. */
struct mtlq_backend {
    const char *name;
    int32_t (*open)(mtlq_device *device, const mtlq_device_desc *desc);
    void (*close)(mtlq_device *device);
    void (*get_info)(const mtlq_device *device, mtlq_device_info *info);
    int32_t (*buffer_create)(mtlq_buffer *buffer); /* sets contents, unless wrapped */
    void (*buffer_free)(mtlq_buffer *buffer);      /* after the submissions that may use it */
    int32_t (*heap_create)(mtlq_heap *heap);
    void (*heap_free)(mtlq_heap *heap);
    int32_t (*map)(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);
    int32_t (*library_create)(mtlq_library *library, const char *source, uint64_t num_bytes);
    void (*library_free)(mtlq_library *library);
    int32_t (*pipeline_create)(mtlq_pipeline *pipeline, const char *name,
                               const mtlq_constant *constants, uint32_t num_constants);
    void (*pipeline_free)(mtlq_pipeline *pipeline);
    /* Whether the kernel takes these bindings, arguments, group and grid; index is for the message. */
    int32_t (*check_dispatch)(const mtlq_pipeline *pipeline, const mtlq_dispatch *dispatch,
                              uint32_t index);
    int32_t (*submit)(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                      uint64_t *ticket);
    int32_t (*wait)(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds);
    int32_t (*ticket_time)(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds);
};

/* Whether kernels see the buffer as a table of addresses. */
static inline bool mtlq_is_page_table(const mtlq_buffer *buffer)
{
    return buffer->memory == MTLQ_SPARSE && buffer->object.device->has_page_tables;
}

extern const mtlq_backend mtlq_cpu;
extern const mtlq_backend mtlq_metal; /* where MTLQ_METAL is defined */

/* Sets this thread's message and returns the status. */
__attribute__((format(printf, 2, 3))) int32_t mtlq_fail(int32_t status, const char *format, ...);

void mtlq_lock(mtlq_device *device);
void mtlq_unlock(mtlq_device *device);
/* MTLQ_OK unless an earlier submission failed. */
int32_t mtlq_check_usable(const mtlq_device *device);

/* A zeroed object of num_bytes with one reference, known by its id; locked. */
int32_t mtlq_object_create(mtlq_device *device, mtlq_kind kind, size_t num_bytes,
                           void (*destroy)(mtlq_object *object), mtlq_object **out);
/* NULL if the device has no object of this kind and id; locked. */
void *mtlq_object_find(const mtlq_device *device, mtlq_kind kind, uint32_t id);
void mtlq_object_release(mtlq_object *object); /* locked */
/* Also unlocks; the device may be gone afterwards. */
void mtlq_object_release_and_unlock(mtlq_object *object);
/* For a caller without the lock. NULL is a no-op. */
void mtlq_object_free(mtlq_object *object);

/* Checks and applies map operations; locked. */
int32_t mtlq_map_locked(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);

#endif
