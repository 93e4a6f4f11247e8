/* mtlq.h: the C interface of the MTLQwen shim.
 *
 * A device executes plans. A plan is an array of fixed-size dispatch records, made once; the values
 * that change from step to step live in buffers, so that one step of inference is one mtlq_submit.
 *
 * Rules that hold for every function:
 *   - it returns MTLQ_OK or a status whose low byte is one of MTLQ_E_*; mtlq_last_error() then holds a
 *     sentence for people, per thread, until the next failing call of that thread;
 *   - an out-parameter comes last, is NULL (or 0) unless the call succeeds;
 *   - create/open: the caller frees. wrap: the caller keeps the memory alive until free. contents: borrowed;
 *   - free/close of NULL is a no-op. Every object counts as a user of its device, so that objects may be
 *     released in any order: the device goes when it is closed and its last object is freed;
 *   - thread classes: [any] any thread; [device] one thread at a time per device. Free and close are [any];
 *   - versions: a minor version adds functions, constants and fields at the end of structs that begin with
 *     struct_size. Nothing is changed, moved or removed without a new major version. The library takes
 *     the smaller struct_size of an older program and reads no further; of a larger one it ignores the rest.
 * Nothing here aborts, prints, or calls back. */
#ifndef MTLQ_H
#define MTLQ_H

#include <stdint.h>

#if defined(_WIN32)
#define MTLQ_API
#else
#define MTLQ_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MTLQ_ABI_MAJOR 1
#define MTLQ_ABI_MINOR 1

/* Statuses. The low byte is the family; higher bytes may add detail. */
#define MTLQ_OK 0
#define MTLQ_E_ARGUMENT 1    /* an argument is out of range or inconsistent */
#define MTLQ_E_NOMEM 2       /* memory or address space */
#define MTLQ_E_UNSUPPORTED 3 /* this device or build cannot do it */
#define MTLQ_E_NOT_FOUND 4   /* no device, kernel or object of that name or id */
#define MTLQ_E_LIMIT 5       /* a limit of the operating system; the message names the remedy */
#define MTLQ_E_DEVICE 6      /* the device failed a submission */
#define MTLQ_E_LOST 7        /* an earlier submission failed: only close works */
#define MTLQ_E_TIMEOUT 8     /* mtlq_wait gave up; the submission goes on */

#define MTLQ_NO_ID 0xffffffffu   /* "no such object" in a record */
#define MTLQ_FOREVER UINT64_MAX  /* timeout of mtlq_wait */

typedef struct mtlq_device mtlq_device;
typedef struct mtlq_buffer mtlq_buffer; /* shared, wrapped or sparse memory */
typedef struct mtlq_heap mtlq_heap;     /* physical pages that sparse buffers map */
typedef struct mtlq_library mtlq_library;
typedef struct mtlq_pipeline mtlq_pipeline;
typedef struct mtlq_plan mtlq_plan;
typedef struct mtlq_encoder mtlq_encoder;

/* major << 16 | minor. Refuse another major, or an older minor than the one compiled against. [any] */
MTLQ_API uint32_t mtlq_abi_version(void);
/* The text of this thread's last failure, "" if none. Valid until its next failing call. [any] */
MTLQ_API const char *mtlq_last_error(void);

/* ---- device -------------------------------------------------------------------------------- */

#define MTLQ_DEVICE_PROFILE 1u /* time every dispatch: see mtlq_plan_times */

typedef struct mtlq_device_desc {
    uint32_t struct_size;
    uint32_t flags;       /* MTLQ_DEVICE_* */
    uint32_t num_threads; /* cpu: pool size including the caller; 0 = one per usable core */
    uint32_t reserved;    /* zero */
    const char *isa;      /* cpu: NULL = the best this machine has; else "avx512", "avx2", "neon", "portable" */
} mtlq_device_desc;

typedef struct mtlq_device_info {
    uint32_t struct_size;
    uint32_t num_threads;
    char name[64];                 /* of the hardware */
    char isa[16];                  /* kernels in use */
    uint64_t memory_bytes;         /* what the device can use in all */
    uint64_t max_buffer_bytes;
    uint64_t wrap_alignment_bytes; /* of the address that mtlq_buffer_wrap wants */
    uint32_t sparse_page_bytes[4]; /* page sizes of sparse buffers, ascending, 0 = none */
    uint32_t max_mappings;         /* of the operating system, for buffers and heaps; 0 = unlimited */
    uint32_t reserved;
    char page_table_reason[128]; /* since 1.1: why sparse buffers are page tables here, "" = they are not */
} mtlq_device_info;

/* Opens "cpu" or "metal". desc may be NULL. Starts the worker threads. [any] */
MTLQ_API int32_t mtlq_device_open(const char *name, const mtlq_device_desc *desc, mtlq_device **out);
MTLQ_API void mtlq_device_close(mtlq_device *device);
/* Fills what info->struct_size covers. [device] */
MTLQ_API int32_t mtlq_device_get_info(mtlq_device *device, mtlq_device_info *info);

/* ---- memory -------------------------------------------------------------------------------- */

/* Zero-filled memory that both sides see; physical pages come on first touch. [device] */
MTLQ_API int32_t mtlq_buffer_create(mtlq_device *device, uint64_t num_bytes, mtlq_buffer **out);
/* A buffer over memory of the caller (a mapped file): no copy. The device may read, never use, the rest
 * of the last page. [device] */
MTLQ_API int32_t mtlq_buffer_wrap(mtlq_device *device, void *data, uint64_t num_bytes, mtlq_buffer **out);
/* A virtual range of num_bytes, nothing behind it until mtlq_map. page_bytes must divide num_bytes and
 * be one of the device's sparse page sizes, or on the cpu any multiple of the system's page. Touching an
 * unmapped page is a fault.
 * On a device with a page_table_reason kernels see the buffer as a table of 64-bit addresses of pages, 0
 * where nothing is mapped, in place of the range: a binding's offset, a multiple of page_bytes, is that of
 * the first entry's page. Pages that are neighbours in a heap are neighbours in memory. [device] */
MTLQ_API int32_t mtlq_sparse_create(mtlq_device *device, uint64_t num_bytes, uint32_t page_bytes,
                                    mtlq_buffer **out);
/* The address of a buffer in this process; metal: MTLQ_E_UNSUPPORTED for a sparse one. [any] */
MTLQ_API int32_t mtlq_buffer_contents(mtlq_buffer *buffer, void **out);
/* The number by which dispatch and map records name this buffer; never reused by its device. [any] */
MTLQ_API uint32_t mtlq_buffer_id(const mtlq_buffer *buffer);
MTLQ_API void mtlq_buffer_free(mtlq_buffer *buffer);

/* num_bytes of physical memory in pages, committed on first touch. [device] */
MTLQ_API int32_t mtlq_heap_create(mtlq_device *device, uint64_t num_bytes, uint32_t page_bytes,
                                  mtlq_heap **out);
MTLQ_API uint32_t mtlq_heap_id(const mtlq_heap *heap);
/* The address of the heap's pages in this process, mapped or not. [any] */
MTLQ_API int32_t mtlq_heap_contents(mtlq_heap *heap, void **out);
/* Refused (nothing is freed, MTLQ_E_ARGUMENT) while a sparse buffer still maps one of its pages. */
MTLQ_API int32_t mtlq_heap_free(mtlq_heap *heap);

#define MTLQ_MAP 0u
#define MTLQ_UNMAP 1u

/* Pages [page, page + num_pages) of a sparse buffer show heap pages from heap_page on (MTLQ_MAP),
 * or nothing (MTLQ_UNMAP; heap = MTLQ_NO_ID). One heap page may be shown in several places. */
typedef struct mtlq_map_op {
    uint32_t kind;
    uint32_t buffer;
    uint32_t heap;
    uint32_t reserved; /* zero */
    uint64_t page;
    uint64_t heap_page;
    uint64_t num_pages;
} mtlq_map_op;

/* Applies the operations in order, after all earlier submissions. Checked as a whole before the
 * first is applied. [device] */
MTLQ_API int32_t mtlq_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);

/* ---- kernels ------------------------------------------------------------------------------- */

typedef struct mtlq_constant {
    uint32_t index; /* function constant */
    uint32_t value; /* of a uint */
} mtlq_constant;

/* metal: compiles source (UTF-8). cpu: source must be NULL, the kernels are built in. [device] */
MTLQ_API int32_t mtlq_library_create(mtlq_device *device, const char *source, uint64_t num_bytes,
                                     mtlq_library **out);
MTLQ_API void mtlq_library_free(mtlq_library *library);
/* A kernel by name. The cpu device takes no constants. [device] */
MTLQ_API int32_t mtlq_pipeline_create(mtlq_library *library, const char *name,
                                      const mtlq_constant *constants, uint32_t num_constants,
                                      mtlq_pipeline **out);
MTLQ_API uint32_t mtlq_pipeline_id(const mtlq_pipeline *pipeline);
MTLQ_API void mtlq_pipeline_free(mtlq_pipeline *pipeline);

/* ---- plans --------------------------------------------------------------------------------- */

#define MTLQ_BARRIER 1u /* flag of a dispatch: wait for everything before it in this plan */

typedef struct mtlq_binding {
    uint32_t buffer;
    uint32_t reserved; /* zero */
    uint64_t offset_bytes;
} mtlq_binding;

/* One kernel launch. The cpu device ignores grid and group: a kernel divides its own work. */
typedef struct mtlq_dispatch {
    uint32_t pipeline;
    uint32_t flags;
    uint32_t grid[3];       /* threadgroups; unused when grid_buffer is set */
    uint32_t group[3];      /* threads per threadgroup */
    uint32_t grid_buffer;   /* MTLQ_NO_ID, or a buffer that holds grid[3] at grid_offset_bytes */
    uint32_t grid_offset_bytes;
    uint32_t first_binding; /* in the plan's bindings */
    uint32_t num_bindings;
    uint32_t args_offset;   /* in the plan's argument bytes, 16-byte aligned */
    uint32_t args_bytes;
    uint32_t reserved[2];   /* zero */
} mtlq_dispatch;

typedef struct mtlq_plan_desc {
    uint32_t struct_size;
    uint32_t num_dispatches;
    uint32_t num_bindings;
    uint32_t num_args_bytes;
    const mtlq_dispatch *dispatches;
    const mtlq_binding *bindings;
    const void *args;
} mtlq_plan_desc;

/* Copies the records and checks them: ids exist, bindings and argument sizes are what each kernel
 * wants. The plan keeps the buffers and pipelines it names alive. [device] */
MTLQ_API int32_t mtlq_plan_create(mtlq_device *device, const mtlq_plan_desc *desc, mtlq_plan **out);
MTLQ_API void mtlq_plan_free(mtlq_plan *plan);
/* Nanoseconds spent in each dispatch over all submissions so far; needs MTLQ_DEVICE_PROFILE, which
 * makes every dispatch wait for the one before it.
 * count must be the plan's number of dispatches. [device] */
MTLQ_API int32_t mtlq_plan_times(mtlq_plan *plan, uint64_t *nanoseconds, uint32_t count);

/* Map operations, then plans, in order, after all earlier tickets. *ticket may be waited for. On the
 * cpu device the calling thread is worker 0 and the work is done on return. [device] */
MTLQ_API int32_t mtlq_submit(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                             const mtlq_map_op *ops, uint32_t num_ops, uint64_t *ticket);
/* [any] */
MTLQ_API int32_t mtlq_wait(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds);
/* Device time of a finished ticket, among the last 64. [any] */
MTLQ_API int32_t mtlq_ticket_time(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds);

/* ---- the same, one dispatch at a time (small programs, other languages) ---------------------- */

MTLQ_API int32_t mtlq_encoder_create(mtlq_device *device, mtlq_encoder **out);
/* Appends one launch; grid_buffer, first_binding, args_offset of the record are ignored. [device] */
MTLQ_API int32_t mtlq_encoder_dispatch(mtlq_encoder *encoder, const mtlq_dispatch *dispatch,
                                       const mtlq_binding *bindings, const void *args);
/* Submits what was encoded and empties the encoder. [device] */
MTLQ_API int32_t mtlq_encoder_commit(mtlq_encoder *encoder, uint64_t *ticket);
MTLQ_API void mtlq_encoder_free(mtlq_encoder *encoder);

#ifdef __cplusplus
}
#endif
#endif
