/* fake.h: a Metal device for tests on Linux. ARC.
 *
 * Queues run on threads of their own; dispatches between two barriers run in shuffled order on the kernel
 * emulator; a sparse buffer is reserved address space into which tiles of a heap's file are mapped. What
 * real Metal leaves undefined is an error here: memory that is not resident, a wait that nothing ends. */
#ifndef FAKE_METAL_H
#define FAKE_METAL_H

#import <Metal/Metal.h>

#include <pthread.h>

#define NUM_BUFFERS 31

/* ---- control.m: what tests set and read ---- */
long fake_get(const char *name);
/* Counts a call that may fail; whether the test wants this one to. */
bool fake_fails(void);
NSError *fake_error(NSString *text);
/* Ends the process: the shim broke a rule of Metal. */
_Noreturn void fake_stop(const char *format, ...);
/* Of the test's compiler: kernels "" = names in the source; else the shared object with those kernels.
 * Returns 0, or 1 with a message in answer. */
int fake_compile(const char *source, const char *kernels, char *answer, size_t num_bytes);
double fake_seconds(void);
void fake_trace(NSString *line); /* if a capture runs */

/* ---- worker.m ---- */
@interface FakeWorker : NSObject
- (void)add:(void (^)(FakeWorker *worker))work;
- (void)finish; /* what was added, then the thread */
- (bool)stops;
@end

@interface FakeEvent : NSObject <MTLSharedEvent>
- (void)signal:(uint64_t)value;
/* False after 2 seconds, or when the worker stops. */
- (bool)waitFor:(uint64_t)value on:(FakeWorker *)worker;
@end

/* ---- memory.m ---- */
@interface FakeHeap : NSObject <MTLHeap> {
@public
    int file;
    char *address;
    NSUInteger bytes;
    MTLSparsePageSize page;
}
@end

@interface FakeBuffer : NSObject <MTLBuffer> {
@public
    char *address;
    NSUInteger bytes;
    bool isPrivate;
    NSUInteger reserved; /* bytes of address space that it owns, from the page of its address on */
    MTLSparsePageSize page;       /* 0: not sparse */
    FakeHeap *heap;               /* that it lies in */
    FakeHeap *__strong *mappings; /* sparse: of each tile */
    NSUInteger numTiles;
}
@end
/* How many buffers gave away their address so far; those of the first `count` that still live. */
uint64_t fake_num_addressed(void);
#define MAX_ADDRESSED 64
int fake_addressed(uint64_t count, const void *buffers[MAX_ADDRESSED]);
NSUInteger fake_tile_bytes(MTLSparsePageSize size);
id<MTLBuffer> fake_buffer(NSUInteger length, MTLResourceOptions options);
id<MTLBuffer> fake_wrap(void *address, NSUInteger length);
id<MTLBuffer> fake_sparse(NSUInteger length, MTLSparsePageSize size);
id<MTLHeap> fake_heap(MTLHeapDescriptor *descriptor);
/* Names the sparse buffer and tile at an address; false if there is none. */
bool fake_find_tile(const void *address, NSUInteger *tile);

@interface FakeResidencySet : NSObject <MTLResidencySet>
- (bool)holds:(const void *)allocation;
@end

@interface FakeMapper : NSObject <MTL4CommandQueue>
@end

/* ---- library.m ---- */
@interface FakeLibrary : NSObject <MTLLibrary>
- (instancetype)initWithSource:(const char *)text names:(const char *)list;
/* The shared object that has a kernel; compiles all kernels that were asked for so far. */
- (void *)objectFor:(const char *)kernel;
@end

@interface FakeFunction : NSObject <MTLFunction> {
@public
    FakeLibrary *library;
    char kernel[64];
    uint32_t constants[32];
    bool isSet[32];
}
@end

@interface FakePipeline : NSObject <MTLComputePipelineState> {
@public
    FakeFunction *function;
}
@end

id<MTLComputePipelineState> fake_pipeline(MTLComputePipelineDescriptor *descriptor,
                                          MTLPipelineOption options, NSError **error);
id<MTLBinaryArchive> fake_archive(MTLBinaryArchiveDescriptor *descriptor, NSError **error);

/* ---- queue.m, encoder.m ---- */
typedef enum { FAKE_WAIT, FAKE_SIGNAL, FAKE_DISPATCH, FAKE_BARRIER, FAKE_FILL, FAKE_COPY } FakeKind;

/* What an encoder was told of by useResource. */
@interface FakeUses : NSObject {
@public
    FakeBuffer *buffers[MAX_ADDRESSED];
    int count;
}
@end

@interface FakeCommand : NSObject {
@public
    FakeKind kind;
    FakeEvent *event;
    uint64_t value;
    FakePipeline *pipeline;
    MTLSize groups, threads;
    FakeBuffer *buffers[NUM_BUFFERS], *indirect;
    NSUInteger offsets[NUM_BUFFERS], indirectOffset;
    void *bytes[NUM_BUFFERS];
    NSRange range;
    FakeUses *uses;
    uint64_t numAddressed; /* when it was encoded */
}
/* What is wrong, or nil. */
- (NSString *)runWithSets:(FakeResidencySet *__strong *)sets count:(int)numSets;
@end

@interface FakeCommandBuffer : NSObject <MTLCommandBuffer> {
@public
    bool isEncoding;
}
- (void)add:(FakeCommand *)command;
@end

@interface FakeEncoder : NSObject <MTLComputeCommandEncoder, MTLBlitCommandEncoder>
- (instancetype)initWithBuffer:(FakeCommandBuffer *)buffer type:(MTLDispatchType)type;
@end

@interface FakeQueue : NSObject <MTLCommandQueue> {
@public
    FakeWorker *worker;
    FakeResidencySet *sets[8];
    int numSets;
    FakeEvent *lastEvent; /* that the last command buffer signals at its end */
    uint64_t lastValue, numCommitted, numDone;
}
@end

#endif
