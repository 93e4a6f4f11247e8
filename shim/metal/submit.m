/* submit.m: a submission is one command buffer with one concurrent encoder; the plan's barriers are the
 * only order in it. Tickets end in completion handlers. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "metal.h"

/* ---- tickets ------------------------------------------------------------------------------- */

static uint64_t gpu_nanoseconds(id<MTLCommandBuffer> work)
{
    CFTimeInterval seconds = work.GPUEndTime - work.GPUStartTime;
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

static void finish_ticket(MtlqTickets *tickets, uint64_t ticket, id<MTLCommandBuffer> work)
{
    pthread_mutex_lock(&tickets->mutex);
    if (work.status != MTLCommandBufferStatusCompleted && !tickets->failed) {
        tickets->failed = ticket;
        NSString *reason = work.error.localizedDescription;
        strncpy(tickets->reason, reason ? reason.UTF8String : "no reason given",
                sizeof tickets->reason - 1);
    }
    tickets->nanoseconds[ticket % NUM_TICKETS] = gpu_nanoseconds(work);
    tickets->finished = ticket;
    pthread_cond_broadcast(&tickets->changed);
    pthread_mutex_unlock(&tickets->mutex);
}

static struct timespec deadline_after(uint64_t nanoseconds)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    uint64_t end = (uint64_t)deadline.tv_nsec + nanoseconds % 1000000000u;
    deadline.tv_sec += (time_t)(nanoseconds / 1000000000u + end / 1000000000u);
    deadline.tv_nsec = (long)(end % 1000000000u);
    return deadline;
}

/* Whether the ticket ended in time. The mutex is held. */
static bool wait_ticket(MtlqTickets *tickets, uint64_t ticket, uint64_t timeout_nanoseconds)
{
    bool forever = timeout_nanoseconds > INT64_MAX / 2;
    struct timespec deadline = deadline_after(forever ? 0 : timeout_nanoseconds);
    while (tickets->finished < ticket) {
        if (forever)
            pthread_cond_wait(&tickets->changed, &tickets->mutex);
        else if (pthread_cond_timedwait(&tickets->changed, &tickets->mutex, &deadline) == ETIMEDOUT)
            break;
    }
    return tickets->finished >= ticket;
}

int32_t metal_wait(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds)
{
    METAL_BEGIN
    MtlqTickets *tickets = metal_of(device)->tickets;
    pthread_mutex_lock(&tickets->mutex);
    bool is_known = ticket && ticket <= tickets->last;
    bool is_finished = is_known && wait_ticket(tickets, ticket, timeout_nanoseconds);
    bool is_failed = is_finished && tickets->failed && ticket >= tickets->failed;
    pthread_mutex_unlock(&tickets->mutex);
    if (!is_known)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "wait: no ticket %llu", (unsigned long long)ticket);
    if (!is_finished)
        return mtlq_fail(MTLQ_E_TIMEOUT, "wait: ticket %llu is still running",
                         (unsigned long long)ticket);
    if (is_failed)
        return mtlq_fail(MTLQ_E_DEVICE, "the GPU failed ticket %llu: %s",
                         (unsigned long long)tickets->failed, tickets->reason);
    return MTLQ_OK;
    METAL_END("wait")
}

int32_t metal_ticket_time(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds)
{
    METAL_BEGIN
    MtlqTickets *tickets = metal_of(device)->tickets;
    pthread_mutex_lock(&tickets->mutex);
    bool is_kept =
        ticket && ticket <= tickets->finished && tickets->last - ticket < NUM_TICKETS;
    if (is_kept)
        *nanoseconds = tickets->nanoseconds[ticket % NUM_TICKETS];
    pthread_mutex_unlock(&tickets->mutex);
    if (!is_kept)
        return mtlq_fail(MTLQ_E_NOT_FOUND,
                         "ticket_time: %llu is not a finished one of the last %u tickets",
                         (unsigned long long)ticket, NUM_TICKETS);
    return MTLQ_OK;
    METAL_END("ticket_time")
}

int32_t metal_check_usable(mtlq_device *device)
{
    MtlqTickets *tickets = metal_of(device)->tickets;
    pthread_mutex_lock(&tickets->mutex);
    if (tickets->failed)
        device->lost = true;
    pthread_mutex_unlock(&tickets->mutex);
    return mtlq_check_usable(device);
}

void metal_drain(MtlqMetal *metal)
{
    MtlqTickets *tickets = metal->tickets;
    pthread_mutex_lock(&tickets->mutex);
    bool is_idle = wait_ticket(tickets, tickets->last, MTLQ_FOREVER) && !tickets->failed;
    pthread_mutex_unlock(&tickets->mutex);
    if (is_idle && metal->timeline) /* mappings have no completion handler */
        [metal->event waitUntilSignaledValue:metal->timeline timeoutMS:MAX_DRAIN_MILLISECONDS];
}

/* ---- encoding ------------------------------------------------------------------------------ */

static void bind_buffer(id<MTLComputeCommandEncoder> encoder, const mtlq_buffer *buffer,
                        uint64_t offset_bytes, uint32_t index)
{
    MtlqViews *memory = (__bridge MtlqViews *)buffer->handle;
    if (mtlq_is_page_table(buffer))
        offset_bytes = offset_bytes / buffer->page_bytes * sizeof(uint64_t);
    uint64_t view = offset_bytes / memory->strideBytes;
    if (view >= memory->views.count)
        view = memory->views.count - 1;
    [encoder setBuffer:memory->views[view]
                offset:offset_bytes - view * memory->strideBytes
               atIndex:index];
}

static void encode_dispatch(id<MTLComputeCommandEncoder> encoder, const mtlq_plan *plan,
                            uint32_t index)
{
    const mtlq_dispatch *dispatch = &plan->dispatches[index];
    id<MTLComputePipelineState> kernel =
        (__bridge id<MTLComputePipelineState>)(void *)(uintptr_t)plan->pipelines[index]->kernel;
    MTLSize grid = MTLSizeMake(dispatch->grid[0], dispatch->grid[1], dispatch->grid[2]);
    MTLSize group = MTLSizeMake(dispatch->group[0], dispatch->group[1], dispatch->group[2]);
    [encoder pushDebugGroup:kernel.label];
    [encoder setComputePipelineState:kernel];
    for (uint32_t i = 0; i < dispatch->num_bindings; i++) {
        uint32_t binding = dispatch->first_binding + i;
        bind_buffer(encoder, plan->buffers[binding], plan->bindings[binding].offset_bytes, i);
    }
    if (dispatch->args_bytes)
        [encoder setBytes:plan->args + dispatch->args_offset
                   length:dispatch->args_bytes
                  atIndex:ARGS_BUFFER];
    const mtlq_buffer *indirect = plan->grid_buffers[index];
    if (indirect) {
        MtlqViews *memory = (__bridge MtlqViews *)indirect->handle;
        [encoder dispatchThreadgroupsWithIndirectBuffer:memory->views[0]
                                   indirectBufferOffset:dispatch->grid_offset_bytes
                                  threadsPerThreadgroup:group];
    } else {
        [encoder dispatchThreadgroups:grid threadsPerThreadgroup:group];
    }
    [encoder popDebugGroup];
}

/* Dispatches [first, first + count) of a plan. */
static void encode_range(id<MTLComputeCommandEncoder> encoder, const mtlq_plan *plan, uint32_t first,
                         uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        if (i > first && plan->dispatches[i].flags & MTLQ_BARRIER)
            [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        encode_dispatch(encoder, plan, i);
    }
}

id<MTLCommandBuffer> metal_begin_work(MtlqMetal *metal)
{
    id<MTLCommandBuffer> work = [metal->queue commandBuffer];
    if (metal->timeline)
        [work encodeWaitForEvent:metal->event value:metal->timeline];
    return work;
}

uint64_t metal_commit_work(MtlqMetal *metal, id<MTLCommandBuffer> work)
{
    MtlqTickets *tickets = metal->tickets;
    pthread_mutex_lock(&tickets->mutex);
    uint64_t ticket = ++tickets->last;
    pthread_mutex_unlock(&tickets->mutex);
    metal->timeline++;
    [work encodeSignalEvent:metal->event value:metal->timeline];
    [work addCompletedHandler:^(id<MTLCommandBuffer> done) {
      finish_ticket(tickets, ticket, done);
    }];
    [work commit];
    return ticket;
}

static id<MTLComputeCommandEncoder> begin_kernels(mtlq_device *device, id<MTLCommandBuffer> work)
{
    id<MTLComputeCommandEncoder> encoder =
        [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    if (device->has_page_tables)
        metal_use_heaps(device, encoder);
    return encoder;
}

static int32_t submit_plans(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                            uint64_t *ticket)
{
    MtlqMetal *metal = metal_of(device);
    id<MTLCommandBuffer> work = metal_begin_work(metal);
    id<MTLComputeCommandEncoder> encoder = num_plans ? begin_kernels(device, work) : nil;
    if (!work || (num_plans && !encoder))
        return mtlq_fail(MTLQ_E_NOMEM, "submit: Metal gives no command buffer");
    for (uint32_t i = 0; i < num_plans; i++) {
        if (i > 0)
            [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        encode_range(encoder, plans[i], 0, plans[i]->num_dispatches);
    }
    [encoder endEncoding];
    *ticket = metal_commit_work(metal, work);
    return MTLQ_OK;
}

/* MTLQ_DEVICE_PROFILE: Apple GPUs keep time of command buffers, so each dispatch gets its own. */
static int32_t submit_profiled(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                               uint64_t *ticket)
{
    MtlqMetal *metal = metal_of(device);
    for (uint32_t i = 0; i < num_plans; i++)
        for (uint32_t j = 0; j < plans[i]->num_dispatches; j++) {
            id<MTLCommandBuffer> work = metal_begin_work(metal);
            id<MTLComputeCommandEncoder> encoder = begin_kernels(device, work);
            if (!encoder)
                return mtlq_fail(MTLQ_E_NOMEM, "submit: Metal gives no command buffer");
            encode_range(encoder, plans[i], j, 1);
            [encoder endEncoding];
            *ticket = metal_commit_work(metal, work);
            [work waitUntilCompleted];
            plans[i]->nanoseconds[j] += gpu_nanoseconds(work);
        }
    return *ticket ? MTLQ_OK : submit_plans(device, plans, 0, ticket);
}

/* ---- capture ------------------------------------------------------------------------------- */

/* Whether a capture to MTLQ_METAL_CAPTURE has begun. The first submission is captured, once. */
static bool begin_capture(MtlqMetal *metal)
{
    if (!metal->trace)
        return false;
    MTLCaptureDescriptor *descriptor = [MTLCaptureDescriptor new];
    if (!descriptor)
        return false;
    descriptor.captureObject = metal->gpu;
    descriptor.destination = MTLCaptureDestinationGPUTraceDocument;
    descriptor.outputURL = [NSURL fileURLWithPath:metal->trace];
    metal->trace = nil;
    return [[MTLCaptureManager sharedCaptureManager] startCaptureWithDescriptor:descriptor
                                                                          error:NULL];
}

static void end_capture(MtlqMetal *metal)
{
    metal_drain(metal);
    [[MTLCaptureManager sharedCaptureManager] stopCapture];
}

int32_t metal_submit(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                     uint64_t *ticket)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(device);
    int32_t status = metal_check_usable(device);
    if (status)
        return status;
    metal_commit_residency(metal);
    bool captures = num_plans && begin_capture(metal);
    if (device->flags & MTLQ_DEVICE_PROFILE)
        status = submit_profiled(device, plans, num_plans, ticket);
    else
        status = submit_plans(device, plans, num_plans, ticket);
    if (captures)
        end_capture(metal);
    return status;
    METAL_END("submit")
}
