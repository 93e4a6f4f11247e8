/* memory.m: buffers, heaps and mappings. A sparse buffer is the GPU's alone (private); the process sees
 * its pages through the heap, which has one shared buffer over all of it. Where Metal has no sparse
 * buffers, page_table.m makes tables instead. */
#include <unistd.h>

#include "metal.h"

@implementation MtlqViews
@end
@implementation MtlqHeap
@end

bool metal_page_size(uint32_t page_bytes, MTLSparsePageSize *size)
{
    switch (page_bytes) {
    case 16u << 10:
        *size = MTLSparsePageSize16;
        return true;
    case 64u << 10:
        *size = MTLSparsePageSize64;
        return true;
    case 256u << 10:
        *size = MTLSparsePageSize256;
        return true;
    }
    return false;
}

/* ---- residency ----------------------------------------------------------------------------- */

static void make_resident(MtlqMetal *metal, id allocation)
{
    if (@available(macOS 15.0, *)) {
        [metal->residency addAllocation:allocation];
        metal->residencyChanged = true;
    }
}

/* Nothing may be in flight. */
static void end_residency(MtlqMetal *metal, id allocation)
{
    if (@available(macOS 15.0, *)) {
        [metal->residency removeAllocation:allocation];
        metal->residencyChanged = true;
    }
}

void metal_commit_residency(MtlqMetal *metal)
{
    if (!metal->residencyChanged)
        return;
    if (@available(macOS 15.0, *))
        [metal->residency commit];
    metal->residencyChanged = false;
}

/* ---- buffers ------------------------------------------------------------------------------- */

static id<MTLBuffer> wrap_view(MtlqMetal *metal, const mtlq_buffer *buffer, uint64_t offset_bytes,
                               uint64_t total_bytes)
{
    uint64_t left = total_bytes - offset_bytes, most = metal->gpu.maxBufferLength;
    return [metal->gpu newBufferWithBytesNoCopy:buffer->contents + offset_bytes
                                         length:left < most ? left : most
                                        options:UNTRACKED
                                    deallocator:nil];
}

/* Sets the views over wrapped memory; the last page is taken whole. */
static int32_t wrap_memory(MtlqMetal *metal, mtlq_buffer *buffer, MtlqViews *memory)
{
    uint64_t page = (uint64_t)getpagesize();
    if ((uintptr_t)buffer->contents % page)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "buffer_wrap: address %p is no multiple of the page, %llu bytes; map the "
                         "file, or copy into a buffer",
                         (void *)buffer->contents, (unsigned long long)page);
    uint64_t total = (buffer->num_bytes + page - 1) / page * page;
    uint64_t most = metal->gpu.maxBufferLength;
    uint64_t stride = total <= most ? total : most / 2 / page * page;
    uint64_t count = total <= most ? 1 : (total - 1) / stride;
    id<MTLBuffer> __strong *views = (id<MTLBuffer> __strong *)calloc(count, sizeof *views);
    bool complete = views != NULL;
    for (uint64_t i = 0; complete && i < count; i++) {
        views[i] = wrap_view(metal, buffer, i * stride, total);
        complete = views[i] != nil;
    }
    if (complete)
        memory->views = [NSArray arrayWithObjects:views count:count];
    memory->strideBytes = stride;
    for (uint64_t i = 0; views && i < count; i++)
        views[i] = nil;
    free((void *)views);
    if (memory->views)
        return MTLQ_OK;
    return mtlq_fail(MTLQ_E_NOMEM, "buffer_wrap: Metal refuses %llu bytes in %llu pieces",
                     (unsigned long long)buffer->num_bytes, (unsigned long long)count);
}

static id<MTLBuffer> new_sparse(MtlqMetal *metal, const mtlq_buffer *buffer)
{
    MTLSparsePageSize size;
    if (buffer->object.device->has_page_tables)
        return metal_new_page_table(metal, buffer);
    if (@available(macOS 26.0, *))
        if (metal_page_size(buffer->page_bytes, &size))
            return [metal->gpu newBufferWithLength:buffer->num_bytes
                                           options:MTLResourceStorageModePrivate
                            placementSparsePageSize:size];
    return nil;
}

static int32_t check_page_size(const mtlq_device *device, const char *function, uint32_t page_bytes)
{
    MTLSparsePageSize size;
    if (device->has_page_tables && page_bytes != device->page_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "%s: pages of %u bytes, must be %u in page tables", function,
                         page_bytes, device->page_bytes);
    if (!metal_page_size(page_bytes, &size))
        return mtlq_fail(MTLQ_E_ARGUMENT, "%s: pages of %u bytes, must be 16384, 65536 or 262144",
                         function, page_bytes);
    return MTLQ_OK;
}

static int32_t create_memory(MtlqMetal *metal, mtlq_buffer *buffer, MtlqViews *memory)
{
    id<MTLBuffer> single;
    if (buffer->memory == MTLQ_WRAPPED)
        return wrap_memory(metal, buffer, memory);
    if (buffer->memory == MTLQ_SPARSE) {
        int32_t status = check_page_size(buffer->object.device, "sparse_create", buffer->page_bytes);
        if (status)
            return status;
        single = new_sparse(metal, buffer);
    } else {
        single = [metal->gpu newBufferWithLength:buffer->num_bytes options:UNTRACKED];
    }
    if (single)
        memory->views = [NSArray arrayWithObjects:&single count:1];
    memory->strideBytes = single.length;
    if (!memory->views)
        return mtlq_fail(MTLQ_E_NOMEM, "%s: Metal refuses %llu bytes",
                         buffer->memory == MTLQ_SPARSE ? "sparse_create" : "buffer_create",
                         (unsigned long long)buffer->num_bytes);
    if (buffer->memory == MTLQ_SHARED)
        buffer->contents = single.contents;
    return MTLQ_OK;
}

int32_t metal_buffer_create(mtlq_buffer *buffer)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(buffer->object.device);
    MtlqViews *memory = [MtlqViews new];
    if (!memory)
        return mtlq_fail(MTLQ_E_NOMEM, "buffer_create: no memory");
    int32_t status = create_memory(metal, buffer, memory);
    if (status)
        return status;
    for (NSUInteger i = 0; i < memory->views.count; i++)
        make_resident(metal, memory->views[i]);
    buffer->handle = (__bridge_retained void *)memory;
    return MTLQ_OK;
    METAL_END("buffer_create")
}

void metal_buffer_free(mtlq_buffer *buffer)
{
    @autoreleasepool {
        MtlqMetal *metal = metal_of(buffer->object.device);
        metal_drain(metal);
        MtlqViews *memory = (__bridge_transfer MtlqViews *)buffer->handle;
        for (NSUInteger i = 0; i < memory->views.count; i++)
            end_residency(metal, memory->views[i]);
        metal_commit_residency(metal);
    }
}

/* ---- heaps --------------------------------------------------------------------------------- */

static id<MTLHeap> new_placement_heap(MtlqMetal *metal, const mtlq_heap *heap)
{
    if (@available(macOS 26.0, *)) {
        MTLHeapDescriptor *descriptor = [MTLHeapDescriptor new];
        MTLSparsePageSize size;
        if (!metal_page_size(heap->page_bytes, &size))
            return nil;
        descriptor.type = MTLHeapTypePlacement;
        descriptor.storageMode = MTLStorageModeShared;
        descriptor.hazardTrackingMode = MTLHazardTrackingModeUntracked;
        descriptor.size = heap->num_bytes;
        descriptor.maxCompatiblePlacementSparsePageSize = size;
        return descriptor ? [metal->gpu newHeapWithDescriptor:descriptor] : nil;
    }
    return nil;
}

/* nil if Metal refuses. */
static MtlqHeap *new_heap(MtlqMetal *metal, const mtlq_heap *heap)
{
    MtlqHeap *memory = [MtlqHeap new];
    if (!memory)
        return nil;
    if (heap->object.device->has_page_tables) {
        memory->contents = [metal->gpu newBufferWithLength:heap->num_bytes options:UNTRACKED];
    } else {
        memory->heap = new_placement_heap(metal, heap);
        memory->contents = [memory->heap newBufferWithLength:heap->num_bytes
                                                     options:UNTRACKED
                                                      offset:0];
    }
    return memory->contents ? memory : nil;
}

static id heap_allocation(const MtlqHeap *memory)
{
    return memory->heap ? (id)memory->heap : (id)memory->contents;
}

int32_t metal_heap_create(mtlq_heap *heap)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(heap->object.device);
    int32_t status = check_page_size(heap->object.device, "heap_create", heap->page_bytes);
    if (status)
        return status;
    MtlqHeap *memory = new_heap(metal, heap);
    if (!memory)
        return mtlq_fail(MTLQ_E_NOMEM, "heap_create: Metal refuses %llu bytes",
                         (unsigned long long)heap->num_bytes);
    heap->contents = memory->contents.contents;
    make_resident(metal, heap_allocation(memory));
    heap->handle = (__bridge_retained void *)memory;
    return MTLQ_OK;
    METAL_END("heap_create")
}

void metal_heap_free(mtlq_heap *heap)
{
    @autoreleasepool {
        MtlqMetal *metal = metal_of(heap->object.device);
        metal_drain(metal);
        MtlqHeap *memory = (__bridge_transfer MtlqHeap *)heap->handle;
        end_residency(metal, heap_allocation(memory));
        metal_commit_residency(metal);
    }
}

/* ---- mappings ------------------------------------------------------------------------------ */

#define OPS_PER_CALL 64u

/* Hands over operations from the first on that share a buffer and a heap; returns how many. */
static uint32_t update_mappings(MtlqMetal *metal, const mtlq_device *device, const mtlq_map_op *ops,
                                uint32_t num_ops) API_AVAILABLE(macos(26.0))
{
    MTL4UpdateSparseBufferMappingOperation updates[OPS_PER_CALL];
    uint32_t count = 0;
    for (; count < num_ops && count < OPS_PER_CALL; count++) {
        const mtlq_map_op *op = &ops[count];
        if (op->buffer != ops->buffer || op->heap != ops->heap || !op->num_pages)
            break;
        bool maps = op->kind == MTLQ_MAP; /* ranges and offsets are in tiles, which are our pages */
        updates[count].mode =
            maps ? MTLSparseTextureMappingModeMap : MTLSparseTextureMappingModeUnmap;
        updates[count].bufferRange = NSMakeRange(op->page, op->num_pages);
        updates[count].heapOffset = op->heap_page;
    }
    const mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, ops->buffer);
    const mtlq_heap *heap = mtlq_object_find(device, MTLQ_KIND_HEAP, ops->heap);
    MtlqViews *memory = (__bridge MtlqViews *)buffer->handle;
    MtlqHeap *pages = heap ? (__bridge MtlqHeap *)heap->handle : nil;
    [metal->mapper updateBufferMappings:memory->views[0]
                                   heap:pages ? pages->heap : nil
                             operations:updates
                                  count:count];
    return count;
}

int32_t metal_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(device);
    int32_t status = metal_check_usable(device);
    if (status)
        return status;
    if (device->has_page_tables)
        return metal_update_page_tables(device, ops, num_ops);
    if (@available(macOS 26.0, *)) {
        metal_commit_residency(metal);
        [metal->mapper waitForEvent:metal->event value:metal->timeline];
        for (uint32_t i = 0; i < num_ops;) {
            if (ops[i].num_pages)
                i += update_mappings(metal, device, ops + i, num_ops - i);
            else
                i++;
        }
        metal->timeline++;
        [metal->mapper signalEvent:metal->event value:metal->timeline];
    }
    return MTLQ_OK;
    METAL_END("map")
}
