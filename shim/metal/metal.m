/* metal.m: opening and describing a Metal device, and what it can do with sparse buffers. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "metal.h"

@implementation MtlqTickets
- (instancetype)init
{
    self = [super init];
    if (self) {
        pthread_mutex_init(&mutex, NULL);
        pthread_cond_init(&changed, NULL);
    }
    return self;
}
- (void)dealloc
{
    pthread_cond_destroy(&changed);
    pthread_mutex_destroy(&mutex);
}
@end
@implementation MtlqMetal
@end

static uint32_t apple_family(id<MTLDevice> gpu)
{
    static const MTLGPUFamily families[] = {MTLGPUFamilyApple10, MTLGPUFamilyApple9,
                                            MTLGPUFamilyApple8, MTLGPUFamilyApple7};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if ([gpu supportsFamily:families[i]])
            return (uint32_t)families[i] - 1000;
    return 0;
}

static bool open_residency(MtlqMetal *metal)
{
    if (@available(macOS 15.0, *)) {
        MTLResidencySetDescriptor *descriptor = [MTLResidencySetDescriptor new];
        metal->residency = [metal->gpu newResidencySetWithDescriptor:descriptor error:NULL];
        if (!metal->residency)
            return false;
        [metal->queue addResidencySet:metal->residency];
        [metal->residency requestResidency];
    }
    return true;
}

/* Sets the mapping queue, or the reason for having none. */
static void open_mapper(MtlqMetal *metal)
{
    const char *reason = "the system is older than macOS 26";
    if (@available(macOS 26.0, *)) {
        bool is_certain = false, can_map = true;
        if (@available(macOS 26.4, *)) {
            is_certain = true;
            can_map = metal->gpu.supportsPlacementSparse;
        }
        reason = "the GPU does not support placement sparse";
        if (can_map) {
            metal->mapper = [metal->gpu newMTL4CommandQueue];
            reason = "Metal gives no mapping queue";
        }
        if (metal->mapper && !is_certain && !metal_probe_sparse(metal)) {
            metal->mapper = nil;
            reason = "a test of placement sparse failed, and this macOS does not tell; 26.4 does";
        }
        if (metal->mapper)
            reason = "";
    }
    strncpy(metal->reason, reason, sizeof metal->reason - 1);
}

/* Failing to have a cache is no error: pipelines are then compiled anew. */
static NSURL *open_archives(void)
{
    const char *home = getenv("HOME");
    if (!home)
        return nil;
    NSString *path = [NSString stringWithFormat:@"%s/Library/Caches/mtlqwen", home];
    NSURL *folder = [NSURL fileURLWithPath:path];
    BOOL made = [[NSFileManager defaultManager] createDirectoryAtURL:folder
                                         withIntermediateDirectories:YES
                                                          attributes:nil
                                                               error:NULL];
    return made ? folder : nil;
}

static int32_t open_metal(MtlqMetal *metal)
{
    metal->gpu = MTLCreateSystemDefaultDevice();
    if (!metal->gpu)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "device_open: this machine has no Metal device");
    metal->family = apple_family(metal->gpu);
    if (!metal->family)
        return mtlq_fail(MTLQ_E_UNSUPPORTED,
                         "device_open: %s is not an Apple GPU of family 7 (M1) or later; use \"cpu\"",
                         metal->gpu.name.UTF8String);
    metal->queue = [metal->gpu newCommandQueue];
    metal->event = [metal->gpu newSharedEvent];
    metal->tickets = [MtlqTickets new];
    if (!metal->queue || !metal->event || !metal->tickets || !open_residency(metal))
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: Metal gives no queue, event or residency set");
    open_mapper(metal);
    metal->archives = open_archives();
    const char *trace = getenv("MTLQ_METAL_CAPTURE");
    metal->trace = trace ? [NSString stringWithUTF8String:trace] : nil;
    return MTLQ_OK;
}

static int32_t metal_open(mtlq_device *device, const mtlq_device_desc *desc)
{
    METAL_BEGIN
    if (desc->isa || desc->num_threads)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "device_open: isa and num_threads are of the cpu device; leave them 0");
    MtlqMetal *metal = [MtlqMetal new];
    int32_t status = metal ? open_metal(metal) : mtlq_fail(MTLQ_E_NOMEM, "device_open: no memory");
    if (status)
        return status;
    device->page_bytes = 16u << 10;
    device->max_buffer_bytes = metal->gpu.maxBufferLength;
    device->has_page_tables = metal->reason[0];
    device->state = (__bridge_retained void *)metal;
    return MTLQ_OK;
    METAL_END("device_open")
}

static void metal_close(mtlq_device *device)
{
    @autoreleasepool {
        MtlqMetal *metal = (__bridge_transfer MtlqMetal *)device->state;
        device->state = NULL;
        metal_drain(metal);
        if (@available(macOS 15.0, *))
            [metal->residency endResidency];
    }
}

static void metal_get_info(const mtlq_device *device, mtlq_device_info *info)
{
    static const uint32_t page_bytes[NUM_PAGE_SIZES] = {16u << 10, 64u << 10, 256u << 10};
    @autoreleasepool {
        MtlqMetal *metal = metal_of(device);
        strncpy(info->name, metal->gpu.name.UTF8String, sizeof info->name - 1);
        snprintf(info->isa, sizeof info->isa, "apple%u", metal->family);
        info->memory_bytes = metal->gpu.recommendedMaxWorkingSetSize;
        info->max_buffer_bytes = device->max_buffer_bytes;
        info->wrap_alignment_bytes = (uint64_t)getpagesize();
        memcpy(info->sparse_page_bytes, page_bytes,
               device->has_page_tables ? sizeof page_bytes[0] : sizeof page_bytes);
        memcpy(info->page_table_reason, metal->reason, sizeof metal->reason);
    }
}

const mtlq_backend mtlq_metal = {
    .name = "metal",
    .open = metal_open,
    .close = metal_close,
    .get_info = metal_get_info,
    .buffer_create = metal_buffer_create,
    .buffer_free = metal_buffer_free,
    .heap_create = metal_heap_create,
    .heap_free = metal_heap_free,
    .map = metal_map,
    .library_create = metal_library_create,
    .library_free = metal_library_free,
    .pipeline_create = metal_pipeline_create,
    .pipeline_free = metal_pipeline_free,
    .check_dispatch = metal_check_dispatch,
    .submit = metal_submit,
    .wait = metal_wait,
    .ticket_time = metal_ticket_time,
};
