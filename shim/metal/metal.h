/* metal.h: the state of the metal device. Objective-C with ARC, confined to this folder.
 *
 * Handles of device.h own what they point to (__bridge_retained, __bridge_transfer). Every function of
 * the backend runs in METAL_BEGIN .. METAL_END: an autorelease pool, and no exception leaves it. */
#ifndef MTLQ_METAL_H
#define MTLQ_METAL_H

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "../device.h"

#define METAL_BEGIN                                                                                \
    @autoreleasepool {                                                                             \
        @try {
#define METAL_END(function)                                                                        \
    }                                                                                              \
    @catch (...) {                                                                                 \
        return mtlq_fail(MTLQ_E_DEVICE, "%s: Metal raised an exception", function);                \
    }                                                                                              \
    }

#define UNTRACKED (MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked)
#define NUM_TICKETS 64u
#define NUM_PAGE_SIZES 3u
#define ARGS_BUFFER 30u         /* index of the argument struct (kernels/metal/common.h) */
#define MAX_ARGS_BYTES 4096u    /* of setBytes */
#define MAX_DRAIN_MILLISECONDS 60000u

/* What tickets share with the completion handlers, which run on a thread of Metal's. */
@interface MtlqTickets : NSObject {
@public
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t last, finished; /* tickets end in order */
    uint64_t failed;         /* the first that failed, 0 = none */
    uint64_t nanoseconds[NUM_TICKETS];
    char reason[256];
}
@end

@interface MtlqMetal : NSObject {
@public
    id<MTLDevice> gpu;
    id<MTLCommandQueue> queue;
    id<MTLResidencySet> residency API_AVAILABLE(macos(15.0)); /* every allocation */
    bool residencyChanged;
    id<MTL4CommandQueue> mapper API_AVAILABLE(macos(26.0)); /* nil: page tables */
    /* Orders the two queues: each submission and each batch of mappings waits for `timeline` and
     * signals the next value. */
    id<MTLSharedEvent> event;
    uint64_t timeline;
    MtlqTickets *tickets;
    NSURL *archives; /* folder of the pipelines that earlier processes compiled, nil = none */
    NSString *trace; /* where the first submission is captured, nil = nowhere */
    uint32_t family;
    char reason[128]; /* why sparse buffers are page tables, "" = they are not */
}
@end

/* Views over one wrapped range: each may hold maxBufferLength bytes, and they overlap by half, so that
 * half of that is in one piece from any offset on. All other memory is one view; of a sparse buffer with
 * a page table, the table. */
@interface MtlqViews : NSObject {
@public
    NSArray<id<MTLBuffer>> *views;
    uint64_t strideBytes;
}
@end

@interface MtlqHeap : NSObject {
@public
    id<MTLHeap> heap;       /* nil with page tables */
    id<MTLBuffer> contents; /* all of the heap, for the process; with page tables also for kernels */
}
@end

@interface MtlqLibrary : NSObject {
@public
    id<MTLLibrary> library;
    id<MTLBinaryArchive> archive; /* nil = no cache */
    NSURL *file;                  /* of the archive */
    bool archiveChanged;
}
@end

static inline MtlqMetal *metal_of(const mtlq_device *device)
{
    return (__bridge MtlqMetal *)device->state;
}

/* memory.m */
int32_t metal_buffer_create(mtlq_buffer *buffer);
void metal_buffer_free(mtlq_buffer *buffer);
int32_t metal_heap_create(mtlq_heap *heap);
void metal_heap_free(mtlq_heap *heap);
int32_t metal_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);
void metal_commit_residency(MtlqMetal *metal);
bool metal_page_size(uint32_t page_bytes, MTLSparsePageSize *size);

/* page_table.m */
id<MTLBuffer> metal_new_page_table(MtlqMetal *metal, const mtlq_buffer *buffer);
/* Makes the tables say what pages of device.h say of the pages that the operations name. */
int32_t metal_update_page_tables(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);
/* Lets kernels of this encoder follow addresses of tables. */
void metal_use_heaps(mtlq_device *device, id<MTLComputeCommandEncoder> encoder);

/* library.m */
int32_t metal_library_create(mtlq_library *library, const char *source, uint64_t num_bytes);
void metal_library_free(mtlq_library *library);
int32_t metal_pipeline_create(mtlq_pipeline *pipeline, const char *name,
                              const mtlq_constant *constants, uint32_t num_constants);
void metal_pipeline_free(mtlq_pipeline *pipeline);
int32_t metal_check_dispatch(const mtlq_pipeline *pipeline, const mtlq_dispatch *dispatch,
                             uint32_t index);

/* submit.m */
/* A command buffer that starts after everything before it; nil if Metal has none. */
id<MTLCommandBuffer> metal_begin_work(MtlqMetal *metal);
/* The last use of the command buffer by this thread. Takes the next ticket. */
uint64_t metal_commit_work(MtlqMetal *metal, id<MTLCommandBuffer> work);
int32_t metal_submit(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                     uint64_t *ticket);
int32_t metal_wait(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds);
int32_t metal_ticket_time(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds);
/* Whether a submission has failed since; marks the device lost then. Locked. */
int32_t metal_check_usable(mtlq_device *device);
/* Returns when nothing is in flight, or the device has failed. */
void metal_drain(MtlqMetal *metal);

/* probe.m: whether a mapping that the classic queue writes through arrives in the heap. */
bool metal_probe_sparse(MtlqMetal *metal) API_AVAILABLE(macos(26.0));

#endif
