/* encoder.m: what is encoded, and how a dispatch runs on the emulator. */
#include <dlfcn.h>
#include <string.h>

#include "../../emulator/runtime.h"
#include "fake.h"

extern void fake_count(const char *name, long change);

@implementation FakeUses
@end
@implementation FakeCommand
- (void)dealloc
{
    for (int i = 0; i < NUM_BUFFERS; i++)
        free(bytes[i]);
}
static bool is_resident(const void *allocation, FakeResidencySet *__strong *sets, int numSets)
{
    for (int i = 0; i < numSets; i++)
        if ([sets[i] holds:allocation])
            return true;
    return false;
}
/* The buffer, and the heap of each mapped tile. Systems without sets have nothing to ask. */
static NSString *check_residency(FakeBuffer *buffer, FakeResidencySet *__strong *sets, int numSets)
{
    if (!numSets)
        return nil;
    id allocation = buffer->heap ? (id)buffer->heap : (id)buffer;
    if (!is_resident((__bridge const void *)allocation, sets, numSets))
        return @"a buffer is not resident";
    FakeHeap *known = nil;
    for (NSUInteger i = 0; i < buffer->numTiles; i++) {
        FakeHeap *heap = buffer->mappings[i];
        if (heap && heap != known && !is_resident((__bridge const void *)heap, sets, numSets))
            return @"a heap that a sparse buffer maps is not resident";
        known = heap;
    }
    return nil;
}
/* A kernel may follow any address that was given away, so all of those buffers must be resident. */
- (NSString *)checkAddressed:(FakeResidencySet *__strong *)sets count:(int)numSets
{
    const void *addressed[MAX_ADDRESSED];
    int numLiving = fake_addressed(numAddressed, addressed);
    for (int i = 0; i < numLiving; i++) {
        bool isUsed = is_resident(addressed[i], sets, numSets);
        for (int j = 0; j < uses->count && !isUsed; j++)
            isUsed = (__bridge const void *)uses->buffers[j] == addressed[i];
        if (!isUsed)
            return @"a buffer whose address was taken is not resident";
    }
    return nil;
}
- (NSString *)dispatch
{
    FakeFunction *function = pipeline->function;
    void *object = [function->library objectFor:function->kernel];
    char symbol[96];
    for (int i = 0; i < 32; i++) {
        snprintf(symbol, sizeof symbol, "metal_constant_%d", i);
        void (*set)(const void *) = (void (*)(const void *))dlsym(object, symbol);
        if (set && function->isSet[i])
            set(&function->constants[i]);
    }
    metal_launch launch = {.groups = {(uint32_t)groups.width, (uint32_t)groups.height, (uint32_t)groups.depth},
                           .threads = {(uint32_t)threads.width, (uint32_t)threads.height,
                                       (uint32_t)threads.depth},
                           .seed = (uint64_t)fake_get("seed")};
    if (indirect)
        memcpy(launch.groups, indirect->address + indirectOffset, sizeof launch.groups);
    if (!launch.groups[0] || !launch.groups[1] || !launch.groups[2])
        return nil;
    snprintf(symbol, sizeof symbol, "metal_entry_%s", function->kernel);
    launch.entry = (metal_entry)dlsym(object, symbol);
    for (int i = 0; i < NUM_BUFFERS; i++)
        launch.buffers[i] = buffers[i] ? (void *)(buffers[i]->address + offsets[i]) : bytes[i];
    int (*run)(const metal_launch *) = (int (*)(const metal_launch *))dlsym(object, "metal_dispatch");
    const char *(*error)(void) = (const char *(*)(void))dlsym(object, "metal_error");
    if (!launch.entry || !run)
        fake_stop("%s is not in its shared object", symbol);
    return run(&launch) ? [NSString stringWithFormat:@"%s: %s", function->kernel, error()] : nil;
}
- (NSString *)runWithSets:(FakeResidencySet *__strong *)sets count:(int)numSets
{
    if (kind == FAKE_COPY) { /* what a blit binds is resident for it */
        memcpy(buffers[1]->address + offsets[1], buffers[0]->address + offsets[0], range.length);
        return nil;
    }
    NSString *failure = nil;
    for (int i = 0; i < NUM_BUFFERS && !failure; i++)
        if (buffers[i])
            failure = check_residency(buffers[i], sets, numSets);
    if (indirect && !failure)
        failure = check_residency(indirect, sets, numSets);
    if (failure)
        return failure;
    if (kind == FAKE_FILL) {
        if (fake_get("sparse_works")) /* a write to an unmapped tile is lost */
            memset(buffers[0]->address + range.location, (int)value, range.length);
        return nil;
    }
    fake_count("dispatches", 1);
    if (fake_get("dispatches") == fake_get("fail_dispatch"))
        return @"injected fault of the GPU";
    if (threads.width * threads.height * threads.depth > (NSUInteger)fake_get("max_threads"))
        return nil; /* Metal drops it without a word */
    failure = [self checkAddressed:sets count:numSets];
    if (failure)
        return failure;
    return [self dispatch];
}
@end

@implementation FakeEncoder {
    FakeCommandBuffer *target;
    FakePipeline *pipeline;
    FakeBuffer *buffers[NUM_BUFFERS];
    NSUInteger offsets[NUM_BUFFERS], numBytes[NUM_BUFFERS];
    char bytes[NUM_BUFFERS][4096];
    FakeUses *uses;
    int depth;
    bool isConcurrent;
}
- (instancetype)initWithBuffer:(FakeCommandBuffer *)buffer type:(MTLDispatchType)type
{
    target = buffer;
    uses = [FakeUses new];
    isConcurrent = type == MTLDispatchTypeConcurrent;
    return self;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state
{
    pipeline = (FakePipeline *)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index
{
    if (index >= NUM_BUFFERS || !buffer || offset >= buffer.length || offset % 4)
        fake_stop("setBuffer: index %lu, offset %lu", index, offset);
    buffers[index] = (FakeBuffer *)buffer;
    offsets[index] = offset;
    numBytes[index] = 0;
}
- (void)setBytes:(const void *)source length:(NSUInteger)length atIndex:(NSUInteger)index
{
    if (index >= NUM_BUFFERS || length > 4096)
        fake_stop("setBytes: index %lu, %lu bytes", index, length);
    memcpy(bytes[index], source, length);
    numBytes[index] = length;
    buffers[index] = nil;
}
- (FakeCommand *)commandFor:(MTLSize)threads
{
    if (!pipeline || !threads.width || !threads.height || !threads.depth)
        fake_stop("a dispatch without pipeline or threads");
    FakeCommand *command = [FakeCommand new];
    command->kind = FAKE_DISPATCH;
    command->value = isConcurrent;
    command->pipeline = pipeline;
    command->threads = threads;
    command->uses = uses;
    command->numAddressed = fake_num_addressed();
    for (int i = 0; i < NUM_BUFFERS; i++) {
        command->buffers[i] = buffers[i];
        command->offsets[i] = offsets[i];
        if (!numBytes[i])
            continue;
        command->bytes[i] = aligned_alloc(16, (numBytes[i] + 15) / 16 * 16);
        memcpy(command->bytes[i], bytes[i], numBytes[i]);
    }
    [target add:command];
    return command;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads
{
    [self commandFor:threads]->groups = groups;
}
- (void)dispatchThreadgroupsWithIndirectBuffer:(id<MTLBuffer>)buffer
                          indirectBufferOffset:(NSUInteger)offset
                         threadsPerThreadgroup:(MTLSize)threads
{
    if (offset % 4 || offset + 12 > buffer.length)
        fake_stop("an indirect grid at %lu", offset);
    FakeCommand *command = [self commandFor:threads];
    command->indirect = (FakeBuffer *)buffer;
    command->indirectOffset = offset;
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope
{
    if (scope != MTLBarrierScopeBuffers)
        fake_stop("a barrier that does not cover buffers");
    FakeCommand *command = [FakeCommand new];
    command->kind = FAKE_BARRIER;
    [target add:command];
}
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage
{
    if (usage != (MTLResourceUsageRead | MTLResourceUsageWrite) || uses->count == MAX_ADDRESSED)
        fake_stop("useResource: usage %lu of resource %d", usage, uses->count);
    uses->buffers[uses->count++] = (FakeBuffer *)resource;
}
/* Memory is untracked: copies of an encoder run in any order. */
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)toOffset
                  size:(NSUInteger)size
{
    if (!size || size % 4 || sourceOffset % 4 || toOffset % 4 ||
        sourceOffset + size > source.length || toOffset + size > to.length)
        fake_stop("a copy of %lu bytes from %lu to %lu", size, sourceOffset, toOffset);
    FakeCommand *command = [FakeCommand new];
    command->kind = FAKE_COPY;
    command->value = true;
    command->buffers[0] = (FakeBuffer *)source;
    command->buffers[1] = (FakeBuffer *)to;
    command->offsets[0] = sourceOffset;
    command->offsets[1] = toOffset;
    command->range.length = size;
    [target add:command];
}
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value
{
    FakeCommand *command = [FakeCommand new];
    command->kind = FAKE_FILL;
    command->buffers[0] = (FakeBuffer *)buffer;
    command->range = range;
    command->value = value;
    [target add:command];
}
- (void)pushDebugGroup:(NSString *)name
{
    depth++;
    fake_trace(name);
}
- (void)popDebugGroup
{
    depth--;
}
- (void)endEncoding
{
    if (depth || !target->isEncoding)
        fake_stop("endEncoding twice or inside a debug group");
    target->isEncoding = false;
}
@end
