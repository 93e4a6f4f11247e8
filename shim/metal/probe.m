/* probe.m: macOS 26.0 to 26.3 have placement sparse but do not say whether this GPU does. */
#include "metal.h"

#define PROBE_BYTES (16u << 10)
#define PROBE_VALUE 0x5a
#define PROBE_MILLISECONDS 5000u

static id<MTLHeap> probe_heap(MtlqMetal *metal) API_AVAILABLE(macos(26.0))
{
    MTLHeapDescriptor *descriptor = [MTLHeapDescriptor new];
    descriptor.type = MTLHeapTypePlacement;
    descriptor.storageMode = MTLStorageModeShared;
    descriptor.hazardTrackingMode = MTLHazardTrackingModeUntracked;
    descriptor.size = 2 * PROBE_BYTES;
    descriptor.maxCompatiblePlacementSparsePageSize = MTLSparsePageSize16;
    return descriptor ? [metal->gpu newHeapWithDescriptor:descriptor] : nil;
}

/* Maps the heap's second tile at the buffer's third, and fills that on the classic queue. */
static bool write_through_mapping(MtlqMetal *metal, id<MTLBuffer> sparse, id<MTLHeap> heap)
    API_AVAILABLE(macos(26.0))
{
    id<MTLSharedEvent> event = [metal->gpu newSharedEvent];
    id<MTLCommandBuffer> work = [metal->queue commandBuffer];
    MTL4UpdateSparseBufferMappingOperation map = {
        .mode = MTLSparseTextureMappingModeMap,
        .bufferRange = NSMakeRange(2, 1),
        .heapOffset = 1,
    };
    if (!event || !work)
        return false;
    [work encodeWaitForEvent:event value:1];
    id<MTLBlitCommandEncoder> encoder = [work blitCommandEncoder];
    if (!encoder)
        return false;
    [encoder fillBuffer:sparse range:NSMakeRange(2 * PROBE_BYTES, PROBE_BYTES) value:PROBE_VALUE];
    [encoder endEncoding];
    [work encodeSignalEvent:event value:2];
    [metal->mapper updateBufferMappings:sparse heap:heap operations:&map count:1];
    [metal->mapper signalEvent:event value:1];
    [work commit];
    return [event waitUntilSignaledValue:2 timeoutMS:PROBE_MILLISECONDS];
}

bool metal_probe_sparse(MtlqMetal *metal)
{
    id<MTLBuffer> sparse = [metal->gpu newBufferWithLength:4 * PROBE_BYTES
                                                   options:MTLResourceStorageModePrivate
                                   placementSparsePageSize:MTLSparsePageSize16];
    id<MTLHeap> heap = probe_heap(metal);
    id<MTLBuffer> alias = [heap newBufferWithLength:2 * PROBE_BYTES
                                            options:MTLResourceStorageModeShared
                                             offset:0];
    if (!sparse || !alias)
        return false;
    [metal->residency addAllocation:sparse];
    [metal->residency addAllocation:heap];
    [metal->residency commit];
    const uint8_t *pages = alias.contents;
    bool written = write_through_mapping(metal, sparse, heap);
    for (uint32_t i = 0; written && i < PROBE_BYTES; i++)
        written = pages[PROBE_BYTES + i] == PROBE_VALUE;
    [metal->residency removeAllocation:sparse];
    [metal->residency removeAllocation:heap];
    [metal->residency commit];
    return written;
}
