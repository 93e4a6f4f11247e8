/* queue.m: command buffers, the queue that runs them, and the device. */
#include <string.h>
#include <time.h>

#include "fake.h"

extern void fake_count(const char *name, long change);
extern void objc_exception_throw(id object);

#define MAX_COMMANDS 8192

@implementation FakeCommandBuffer {
    FakeQueue *__unsafe_unretained queue; /* whose thread ends before it goes */
    FakeCommand *__strong *commands;
    int count;
    void (^handlers[4])(id<MTLCommandBuffer>);
    int numHandlers;
    MTLCommandBufferStatus state;
    NSError *problem;
    double started, ended;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool isCommitted, isDone;
}
- (instancetype)initWithQueue:(FakeQueue *)owner
{
    queue = owner;
    commands = (FakeCommand *__strong *)calloc(MAX_COMMANDS, sizeof *commands);
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&changed, NULL);
    return self;
}
- (void)add:(FakeCommand *)command
{
    if (isCommitted || count == MAX_COMMANDS)
        fake_stop("encoding into a committed or full command buffer");
    commands[count++] = command;
}
- (MTLCommandBufferStatus)status
{
    return state;
}
- (NSError *)error
{
    return problem;
}
- (CFTimeInterval)GPUStartTime
{
    return started;
}
- (CFTimeInterval)GPUEndTime
{
    return ended;
}
- (FakeEncoder *)encoder:(MTLDispatchType)type
{
    if (isEncoding)
        fake_stop("a second encoder is open");
    if (fake_fails())
        return nil;
    isEncoding = true;
    return [[FakeEncoder alloc] initWithBuffer:self type:type];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type
{
    return [self encoder:type];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder
{
    return [self encoder:MTLDispatchTypeSerial];
}
- (void)event:(id<MTLEvent>)event value:(uint64_t)value kind:(FakeKind)kind
{
    if (isEncoding)
        fake_stop("an event while an encoder is open");
    FakeCommand *command = [FakeCommand new];
    command->kind = kind;
    command->event = (FakeEvent *)event;
    command->value = value;
    [self add:command];
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value
{
    [self event:event value:value kind:FAKE_WAIT];
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value
{
    [self event:event value:value kind:FAKE_SIGNAL];
}
- (void)addCompletedHandler:(void (^)(id<MTLCommandBuffer>))block
{
    if (numHandlers == 4 || isCommitted)
        fake_stop("a completion handler too many or too late");
    handlers[numHandlers++] = block;
}
/* Memory is untracked: only events keep command buffers of one queue from running side by side. */
- (void)checkOrder
{
    bool isIdle = __atomic_load_n(&queue->numDone, __ATOMIC_ACQUIRE) == queue->numCommitted ||
                  [queue->lastEvent waitUntilSignaledValue:queue->lastValue timeoutMS:0];
    bool waits = count && commands[0]->kind == FAKE_WAIT && commands[0]->event == queue->lastEvent &&
                 commands[0]->value >= queue->lastValue;
    if (!isIdle && !waits)
        fake_stop("a command buffer that does not wait for the one before");
    bool signals = count && commands[count - 1]->kind == FAKE_SIGNAL;
    queue->lastEvent = signals ? commands[count - 1]->event : nil;
    queue->lastValue = signals ? commands[count - 1]->value : 0;
    queue->numCommitted++;
}
- (void)commit
{
    [self checkOrder];
    if (isEncoding || isCommitted)
        fake_stop("commit with an open encoder, or twice");
    isCommitted = true;
    state = MTLCommandBufferStatusCommitted;
    FakeCommandBuffer *mine = self;
    [queue->worker add:^(FakeWorker *worker) {
      [mine runOn:worker];
    }];
}
- (void)waitUntilCompleted
{
    if (!isCommitted)
        fake_stop("waitUntilCompleted before commit");
    pthread_mutex_lock(&mutex);
    while (!isDone)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* ---- on the queue's thread ---- */

/* Dispatches between two barriers, or copies, in any order. */
- (int)endOfGroup:(int)first
{
    int end = first;
    while (end < count && (commands[end]->kind == FAKE_DISPATCH || commands[end]->kind == FAKE_COPY))
        end++;
    return end;
}
- (void)shuffle:(int)first end:(int)end
{
    static uint64_t state_of_order;
    if (!state_of_order)
        state_of_order = (uint64_t)fake_get("seed") * 2654435761u + 1;
    for (int i = end - 1; i > first; i--) {
        state_of_order = state_of_order * 6364136223846793005u + 1442695040888963407u;
        int other = first + (int)((state_of_order >> 33) % (uint64_t)(i - first + 1));
        FakeCommand *swapped = commands[i];
        commands[i] = commands[other];
        commands[other] = swapped;
    }
}
- (NSString *)runCommand:(FakeCommand *)command on:(FakeWorker *)worker
{
    if (command->kind == FAKE_SIGNAL)
        [command->event signal:command->value];
    if (command->kind == FAKE_WAIT && ![command->event waitFor:command->value on:worker])
        return @"timeout: waited for an event that nothing signals";
    if (command->kind == FAKE_BARRIER)
        fake_count("barriers", 1);
    if (command->kind == FAKE_DISPATCH || command->kind == FAKE_FILL || command->kind == FAKE_COPY)
        return [command runWithSets:queue->sets count:queue->numSets];
    return nil;
}
- (void)runOn:(FakeWorker *)worker
{
    long stall = fake_get("stall_ms");
    nanosleep(&(struct timespec){stall / 1000, stall % 1000 * 1000000}, NULL);
    started = fake_seconds();
    NSString *failure = nil;
    for (int i = 0; i < count && !failure; i++) {
        int end = [self endOfGroup:i];
        if (end > i + 1 && commands[i]->value) /* of a concurrent encoder, not yet shuffled */
            [self shuffle:i end:end];
        for (int j = i; j < end; j++)
            commands[j]->value = 0;
        failure = [self runCommand:commands[i] on:worker];
    }
    ended = fake_seconds();
    problem = failure ? fake_error(failure) : nil;
    state = failure ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    for (int i = 0; i < numHandlers; i++)
        handlers[i](self);
    for (int i = 0; i < numHandlers; i++)
        handlers[i] = nil;
    __atomic_add_fetch(&queue->numDone, 1, __ATOMIC_RELEASE);
    pthread_mutex_lock(&mutex);
    isDone = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
- (void)dealloc
{
    for (int i = 0; i < count; i++)
        commands[i] = nil;
    free((void *)commands);
    pthread_cond_destroy(&changed);
    pthread_mutex_destroy(&mutex);
}
@end

@implementation FakeQueue
- (instancetype)init
{
    worker = [FakeWorker new];
    return self;
}
- (id<MTLCommandBuffer>)commandBuffer
{
    if (fake_get("throw"))
        objc_exception_throw(self);
    return fake_fails() ? nil : [[FakeCommandBuffer alloc] initWithQueue:self];
}
- (void)addResidencySet:(id<MTLResidencySet>)set
{
    sets[numSets++] = (FakeResidencySet *)set;
}
- (void)dealloc
{
    [worker finish];
}
@end

/* ---- device -------------------------------------------------------------------------------- */

@interface FakeDevice : NSObject <MTLDevice>
@end

@implementation FakeDevice
- (NSString *)name
{
    return @"Fake GPU (kernels emulated)";
}
- (NSUInteger)maxBufferLength
{
    return (NSUInteger)fake_get("max_buffer_bytes");
}
- (NSUInteger)maxThreadgroupMemoryLength
{
    return 32768;
}
- (uint64_t)recommendedMaxWorkingSetSize
{
    return 1ull << 32;
}
- (BOOL)supportsPlacementSparse
{
    return (BOOL)fake_get("sparse");
}
- (BOOL)supportsFamily:(MTLGPUFamily)family
{
    return family <= fake_get("family");
}
- (id<MTLCommandQueue>)newCommandQueue
{
    return fake_fails() ? nil : [FakeQueue new];
}
- (id<MTL4CommandQueue>)newMTL4CommandQueue
{
    return fake_fails() ? nil : [FakeMapper new];
}
- (id<MTLSharedEvent>)newSharedEvent
{
    return fake_fails() ? nil : [FakeEvent new];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options
{
    return length && length <= self.maxBufferLength ? fake_buffer(length, options) : nil;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator
{
    (void)options, (void)deallocator;
    return length <= self.maxBufferLength ? fake_wrap(pointer, length) : nil;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options
             placementSparsePageSize:(MTLSparsePageSize)size
{
    if (!(options & MTLResourceStorageModePrivate))
        fake_stop("a sparse buffer that is not private");
    return length && length <= self.maxBufferLength ? fake_sparse(length, size) : nil;
}
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor *)descriptor
{
    return fake_heap(descriptor);
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                               options:(MTLCompileOptions *)options
                                 error:(NSError **)error
{
    static char answer[16384];
    (void)options;
    bool fails = fake_fails();
    if (fails || fake_compile(source.UTF8String, "", answer, sizeof answer)) {
        if (error)
            *error = fake_error(fails ? @"injected" : [NSString stringWithUTF8String:answer]);
        return nil;
    }
    return [[FakeLibrary alloc] initWithSource:source.UTF8String names:answer];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:
                                   (MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:
                                                              (MTLComputePipelineReflection **)reflection
                                                               error:(NSError **)error
{
    (void)reflection;
    return fake_pipeline(descriptor, options, error);
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor
                                                 error:(NSError **)error
{
    return fake_archive(descriptor, error);
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                                               error:(NSError **)error
{
    (void)descriptor, (void)error;
    return fake_fails() ? nil : [FakeResidencySet new];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void)
{
    return fake_fails() ? nil : [FakeDevice new];
}
