/* pages.c: buffers are anonymous mappings, a heap is a file without a name, a sparse buffer is reserved
 * address space into which pieces of heaps are mapped. */
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int32_t fail_system(int error, const char *function, uint64_t num_bytes)
{
    return mtlq_fail(error == EMFILE || error == ENFILE ? MTLQ_E_LIMIT : MTLQ_E_NOMEM,
                     "%s: the system refuses %llu bytes: %s", function,
                     (unsigned long long)num_bytes, strerror(error));
}

int32_t mtlq_pages_buffer_create(mtlq_buffer *buffer)
{
    if (buffer->memory == MTLQ_WRAPPED)
        return MTLQ_OK;
    bool is_sparse = buffer->memory == MTLQ_SPARSE;
    void *contents = mmap(NULL, buffer->num_bytes, is_sparse ? PROT_NONE : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (contents == MAP_FAILED)
        return fail_system(errno, is_sparse ? "sparse_create" : "buffer_create", buffer->num_bytes);
    buffer->contents = contents;
    buffer->object.device->num_mappings++;
    return MTLQ_OK;
}

void mtlq_pages_buffer_free(mtlq_buffer *buffer)
{
    if (buffer->memory == MTLQ_WRAPPED)
        return;
    munmap(buffer->contents, buffer->num_bytes);
    buffer->object.device->num_mappings--;
}

/* A file in memory that nobody else can open. */
static int anonymous_file(void)
{
#if defined(__linux__) && !defined(MTLQ_NO_MEMFD)
    return memfd_create("mtlq-heap", MFD_CLOEXEC);
#else
    static atomic_uint counter;
    char name[32]; /* macOS allows 31 characters */
    snprintf(name, sizeof name, "/mtlq-%d-%u", (int)getpid(), atomic_fetch_add(&counter, 1));
    int file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file >= 0)
        shm_unlink(name);
    return file;
#endif
}

int32_t mtlq_pages_heap_create(mtlq_heap *heap)
{
    int file = anonymous_file();
    if (file < 0)
        return fail_system(errno, "heap_create", heap->num_bytes);
    void *contents = MAP_FAILED;
    if (!ftruncate(file, (off_t)heap->num_bytes))
        contents = mmap(NULL, heap->num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (contents == MAP_FAILED) {
        int error = errno;
        close(file);
        return fail_system(error, "heap_create", heap->num_bytes);
    }
    heap->contents = contents;
    heap->handle = (void *)(intptr_t)file;
    heap->object.device->num_mappings++;
    return MTLQ_OK;
}

void mtlq_pages_heap_free(mtlq_heap *heap)
{
    munmap(heap->contents, heap->num_bytes);
    close((int)(intptr_t)heap->handle);
    heap->object.device->num_mappings--;
}

/* Whether second goes on where first ends, in the buffer and in the heap. */
static bool continues(const mtlq_map_op *first, const mtlq_map_op *second)
{
    bool same = first->kind == second->kind && first->buffer == second->buffer &&
                first->heap == second->heap && first->page + first->num_pages == second->page;
    return same && (first->kind == MTLQ_UNMAP ||
                    first->heap_page + first->num_pages == second->heap_page);
}

static int32_t apply(mtlq_device *device, const mtlq_map_op *op)
{
    const mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, op->buffer);
    uint64_t num_bytes = op->num_pages * buffer->page_bytes;
    uint8_t *address = buffer->contents + op->page * buffer->page_bytes;
    void *mapped;
    if (!num_bytes)
        return MTLQ_OK;
    if (op->kind == MTLQ_MAP) {
        const mtlq_heap *heap = mtlq_object_find(device, MTLQ_KIND_HEAP, op->heap);
        mapped = mmap(address, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      (int)(intptr_t)heap->handle, (off_t)(op->heap_page * heap->page_bytes));
    } else {
        mapped = mmap(address, num_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    if (mapped == MAP_FAILED)
        return fail_system(errno, "map", num_bytes);
    return MTLQ_OK;
}

int32_t mtlq_pages_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    int32_t status = MTLQ_OK;
    for (uint32_t i = 0; i < num_ops && !status;) {
        mtlq_map_op run = ops[i++];
        while (i < num_ops && continues(&run, &ops[i]))
            run.num_pages += ops[i++].num_pages;
        status = apply(device, &run);
    }
    return status;
}
