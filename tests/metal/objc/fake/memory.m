/* memory.m: buffers, heaps, residency sets, and the queue that maps tiles. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

extern void fake_count(const char *name, long change);

NSUInteger fake_tile_bytes(MTLSparsePageSize size)
{
    return size == MTLSparsePageSize16 ? 16384 : size == MTLSparsePageSize64 ? 65536 : 262144;
}

static void *reserve(NSUInteger bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *address = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

/* ---- heaps --------------------------------------------------------------------------------- */

@implementation MTLHeapDescriptor
@end

@implementation FakeHeap
- (NSUInteger)allocatedSize
{
    return bytes;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options
                              offset:(NSUInteger)offset
{
    if (offset + length > bytes || options & MTLResourceStorageModePrivate)
        fake_stop("a buffer that does not fit its heap");
    FakeBuffer *buffer = fake_fails() ? nil : [FakeBuffer new];
    if (buffer) {
        buffer->address = address + offset;
        buffer->bytes = length;
        buffer->heap = self;
    }
    return buffer;
}
- (void)dealloc
{
    munmap(address, bytes);
    close(file);
}
@end

id<MTLHeap> fake_heap(MTLHeapDescriptor *descriptor)
{
    if (descriptor.type != MTLHeapTypePlacement || descriptor.storageMode != MTLStorageModeShared)
        fake_stop("a heap that is not for placement or not shared");
    if (fake_fails())
        return nil;
    FakeHeap *heap = [FakeHeap new];
    heap->bytes = descriptor.size;
    heap->page = descriptor.maxCompatiblePlacementSparsePageSize;
    heap->file = memfd_create("fake-heap", MFD_CLOEXEC);
    if (ftruncate(heap->file, (off_t)descriptor.size))
        fake_stop("no memory for a heap");
    heap->address = mmap(NULL, heap->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, heap->file, 0);
    if (heap->bytes <= 1u << 22)
        memset(heap->address, 0xff, heap->bytes); /* NaN: a new heap holds anything */
    return heap;
}

/* ---- buffers ------------------------------------------------------------------------------- */

static pthread_mutex_t addressed_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t num_addressed; /* ever */
static struct {
    const void *buffer;
    uint64_t number; /* from 1 */
} addressed[MAX_ADDRESSED];

uint64_t fake_num_addressed(void)
{
    pthread_mutex_lock(&addressed_mutex);
    uint64_t number = num_addressed;
    pthread_mutex_unlock(&addressed_mutex);
    return number;
}

int fake_addressed(uint64_t count, const void *buffers[MAX_ADDRESSED])
{
    int found = 0;
    pthread_mutex_lock(&addressed_mutex);
    for (int i = 0; i < MAX_ADDRESSED; i++)
        if (addressed[i].buffer && addressed[i].number <= count)
            buffers[found++] = addressed[i].buffer;
    pthread_mutex_unlock(&addressed_mutex);
    return found;
}

static int find_addressed(const void *buffer)
{
    for (int i = 0; i < MAX_ADDRESSED; i++)
        if (addressed[i].buffer == buffer)
            return i;
    return -1;
}

static void add_addressed(const void *buffer)
{
    pthread_mutex_lock(&addressed_mutex);
    if (find_addressed(buffer) < 0) {
        int place = find_addressed(NULL);
        if (place < 0)
            fake_stop("addresses of more than %d buffers", MAX_ADDRESSED);
        addressed[place].buffer = buffer;
        addressed[place].number = ++num_addressed;
    }
    pthread_mutex_unlock(&addressed_mutex);
}

static void remove_addressed(const void *buffer)
{
    pthread_mutex_lock(&addressed_mutex);
    int place = find_addressed(buffer);
    if (place >= 0)
        addressed[place].buffer = NULL;
    pthread_mutex_unlock(&addressed_mutex);
}

#define BUFFER_ALIGNMENT 16 /* a buffer ends at a page that faults, so far as this allows */

#define MAX_SPARSE 256
static FakeBuffer *__unsafe_unretained sparse_buffers[MAX_SPARSE];

@implementation FakeBuffer
- (NSUInteger)length
{
    return bytes;
}
- (NSUInteger)allocatedSize
{
    return bytes;
}
- (void *)contents
{
    if (isPrivate)
        fake_stop("the contents of a private buffer");
    return address;
}
- (uint64_t)gpuAddress
{
    if (isPrivate)
        fake_stop("the address of a private buffer");
    add_addressed((__bridge const void *)self);
    return (uint64_t)address;
}
- (void)dealloc
{
    remove_addressed((__bridge const void *)self);
    if (reserved)
        munmap(address - (uintptr_t)address % (uintptr_t)getpagesize(), reserved);
    for (NSUInteger i = 0; i < numTiles; i++)
        mappings[i] = nil;
    free((void *)mappings);
    for (int i = 0; i < MAX_SPARSE; i++)
        if (sparse_buffers[i] == self)
            sparse_buffers[i] = nil;
}
@end

id<MTLBuffer> fake_buffer(NSUInteger length, MTLResourceOptions options)
{
    if (fake_fails())
        return nil;
    FakeBuffer *buffer = [FakeBuffer new];
    NSUInteger page = (NSUInteger)getpagesize(), usable = (length + page - 1) / page * page;
    char *pages = reserve(usable + page);
    if (!pages || mprotect(pages, usable, PROT_READ | PROT_WRITE))
        return nil;
    buffer->address = pages + (usable - length) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    buffer->bytes = length;
    buffer->reserved = usable + page;
    buffer->isPrivate = options & MTLResourceStorageModePrivate;
    return buffer;
}

id<MTLBuffer> fake_wrap(void *address, NSUInteger length)
{
    long page = getpagesize();
    if ((uintptr_t)address % (uintptr_t)page || length % (NSUInteger)page || !length)
        fake_stop("newBufferWithBytesNoCopy wants whole pages");
    if (fake_fails())
        return nil;
    FakeBuffer *buffer = [FakeBuffer new];
    buffer->address = address;
    buffer->bytes = length;
    return buffer;
}

id<MTLBuffer> fake_sparse(NSUInteger length, MTLSparsePageSize size)
{
    int slot = 0;
    while (slot < MAX_SPARSE && sparse_buffers[slot])
        slot++;
    if (slot == MAX_SPARSE)
        fake_stop("more than %d sparse buffers", MAX_SPARSE);
    if (fake_fails())
        return nil;
    FakeBuffer *buffer = [FakeBuffer new];
    buffer->numTiles = (length + fake_tile_bytes(size) - 1) / fake_tile_bytes(size);
    buffer->bytes = buffer->numTiles * fake_tile_bytes(size);
    buffer->address = reserve(buffer->bytes);
    buffer->reserved = buffer->bytes;
    buffer->isPrivate = true;
    buffer->page = size;
    buffer->mappings =
        (FakeHeap *__strong *)calloc(buffer->numTiles, sizeof *buffer->mappings);
    sparse_buffers[slot] = buffer;
    return buffer;
}

bool fake_find_tile(const void *address, NSUInteger *tile)
{
    for (int i = 0; i < MAX_SPARSE; i++) {
        const FakeBuffer *buffer = sparse_buffers[i];
        const char *place = address;
        if (!buffer || place < buffer->address || place >= buffer->address + buffer->bytes)
            continue;
        *tile = (NSUInteger)(place - buffer->address) / fake_tile_bytes(buffer->page);
        return true;
    }
    return false;
}

/* ---- residency ----------------------------------------------------------------------------- */

@implementation MTLResidencySetDescriptor
@end

#define MAX_ALLOCATIONS 1024

@implementation FakeResidencySet {
    id added[MAX_ALLOCATIONS]; /* takes effect at commit */
    id committed[MAX_ALLOCATIONS];
    bool isRequested;
    pthread_mutex_t mutex;
}
- (instancetype)init
{
    pthread_mutex_init(&mutex, NULL);
    return self;
}
- (void)addAllocation:(id)allocation
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (!added[i]) {
            added[i] = allocation;
            return;
        }
    fake_stop("more than %d allocations", MAX_ALLOCATIONS);
}
- (void)removeAllocation:(id)allocation
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (added[i] == allocation) {
            added[i] = nil;
            return;
        }
    fake_stop("removeAllocation of what was not added");
}
- (void)commit
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        committed[i] = added[i];
    pthread_mutex_unlock(&mutex);
}
- (void)requestResidency
{
    isRequested = true;
}
- (void)endResidency
{
    isRequested = false;
}
- (bool)holds:(const void *)allocation
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_ALLOCATIONS && isRequested; i++)
        found |= (__bridge const void *)committed[i] == allocation;
    pthread_mutex_unlock(&mutex);
    return found;
}
- (void)dealloc
{
    pthread_mutex_destroy(&mutex);
}
@end

/* ---- mappings ------------------------------------------------------------------------------ */

static void update_tiles(FakeBuffer *buffer, FakeHeap *heap, MTL4UpdateSparseBufferMappingOperation op)
{
    NSUInteger tile = fake_tile_bytes(buffer->page), count = op.bufferRange.length;
    char *place = buffer->address + op.bufferRange.location * tile;
    bool maps = op.mode == MTLSparseTextureMappingModeMap;
    void *done;
    if (!fake_get("sparse_works"))
        return;
    if (maps)
        done = mmap(place, count * tile, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, heap->file,
                    (off_t)(op.heapOffset * tile));
    else
        done = mmap(place, count * tile, PROT_NONE,
                    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (done == MAP_FAILED)
        fake_stop("the system refuses a mapping");
    for (NSUInteger i = 0; i < count; i++)
        buffer->mappings[op.bufferRange.location + i] = maps ? heap : nil;
    fake_count("mapped_tiles", maps ? (long)count : -(long)count);
}

static void check_update(FakeBuffer *buffer, FakeHeap *heap, MTL4UpdateSparseBufferMappingOperation op)
{
    if (!buffer->page)
        fake_stop("mapping of a buffer that is not sparse");
    if (!op.bufferRange.length || op.bufferRange.location + op.bufferRange.length > buffer->numTiles)
        fake_stop("bufferRange %lu + %lu is empty or past the buffer (it is in tiles)",
                  op.bufferRange.location, op.bufferRange.length);
    if (op.mode == MTLSparseTextureMappingModeUnmap)
        return;
    if (!heap || heap->page < buffer->page)
        fake_stop("a heap of smaller pages than the buffer, or none");
    if ((op.heapOffset + op.bufferRange.length) * fake_tile_bytes(buffer->page) > heap->bytes)
        fake_stop("heapOffset %lu past the heap (it is in tiles)", op.heapOffset);
}

@implementation FakeMapper {
    FakeWorker *worker;
}
- (instancetype)init
{
    worker = [FakeWorker new];
    return self;
}
- (void)dealloc
{
    [worker finish];
}
- (void)waitForEvent:(id<MTLEvent>)event value:(uint64_t)value
{
    FakeEvent *fake = (FakeEvent *)event;
    [worker add:^(FakeWorker *mine) {
      [fake waitFor:value on:mine];
    }];
}
- (void)signalEvent:(id<MTLEvent>)event value:(uint64_t)value
{
    FakeEvent *fake = (FakeEvent *)event;
    [worker add:^(FakeWorker *mine) {
      (void)mine;
      [fake signal:value];
    }];
}
- (void)updateBufferMappings:(id<MTLBuffer>)buffer
                        heap:(id<MTLHeap>)heap
                  operations:(const MTL4UpdateSparseBufferMappingOperation *)operations
                       count:(NSUInteger)count
{
    for (NSUInteger i = 0; i < count; i++) {
        MTL4UpdateSparseBufferMappingOperation op = operations[i];
        FakeBuffer *target = (FakeBuffer *)buffer;
        FakeHeap *source = (FakeHeap *)heap;
        check_update(target, source, op);
        [worker add:^(FakeWorker *mine) {
          (void)mine;
          update_tiles(target, source, op);
        }];
    }
}
@end
