/* memory.c: buffers, heaps, and the page tables of sparse buffers. */
#include <stdlib.h>
#include <string.h>

#include "device.h"

/* ---- buffers ------------------------------------------------------------------------------- */

static void write_page(mtlq_buffer *buffer, uint64_t page, mtlq_page value);

static void destroy_buffer(mtlq_object *object)
{
    mtlq_buffer *buffer = (mtlq_buffer *)object;
    if (buffer->pages)
        for (uint64_t page = 0; page < buffer->num_bytes / buffer->page_bytes; page++)
            if (buffer->pages[page].heap)
                write_page(buffer, page, (mtlq_page){0});
    if (buffer->is_created)
        object->device->backend->buffer_free(buffer);
    free(buffer->pages);
}

static int32_t check_size(const mtlq_device *device, const char *function, uint64_t num_bytes)
{
    if (!num_bytes || num_bytes > device->max_buffer_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "%s: %llu bytes, must be 1 to %llu", function,
                         (unsigned long long)num_bytes,
                         (unsigned long long)device->max_buffer_bytes);
    return MTLQ_OK;
}

static int32_t check_pages(const mtlq_device *device, const char *function, uint64_t num_bytes,
                           uint32_t page_bytes)
{
    if (!page_bytes || page_bytes % device->page_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "%s: pages of %u bytes, must be a multiple of %u", function,
                         page_bytes, device->page_bytes);
    if (num_bytes % page_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "%s: %llu bytes are no multiple of the page, %u", function,
                         (unsigned long long)num_bytes, page_bytes);
    return MTLQ_OK;
}

/* data is NULL unless memory is MTLQ_WRAPPED; page_bytes is 0 unless it is MTLQ_SPARSE. */
static int32_t create_buffer(mtlq_device *device, mtlq_memory memory, void *data, uint64_t num_bytes,
                             uint32_t page_bytes, mtlq_buffer **out)
{
    mtlq_object *object;
    int32_t status = mtlq_object_create(device, MTLQ_KIND_BUFFER, sizeof(mtlq_buffer),
                                        destroy_buffer, &object);
    if (status)
        return status;
    mtlq_buffer *buffer = (mtlq_buffer *)object;
    buffer->memory = memory;
    buffer->num_bytes = num_bytes;
    if (memory == MTLQ_SPARSE) {
        buffer->page_bytes = page_bytes;
        buffer->pages = calloc(num_bytes / page_bytes, sizeof *buffer->pages);
        if (!buffer->pages) {
            mtlq_object_release(object);
            return mtlq_fail(MTLQ_E_NOMEM, "sparse_create: no memory for a table of %llu pages",
                             (unsigned long long)(num_bytes / page_bytes));
        }
    }
    buffer->contents = data;
    status = device->backend->buffer_create(buffer);
    if (status) {
        mtlq_object_release(object);
        return status;
    }
    buffer->is_created = true;
    *out = buffer;
    return MTLQ_OK;
}

int32_t mtlq_buffer_create(mtlq_device *device, uint64_t num_bytes, mtlq_buffer **out)
{
    if (out)
        *out = NULL;
    if (!device || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "buffer_create: NULL argument");
    int32_t status = check_size(device, "buffer_create", num_bytes);
    if (status)
        return status;
    mtlq_lock(device);
    status = create_buffer(device, MTLQ_SHARED, NULL, num_bytes, 0, out);
    mtlq_unlock(device);
    return status;
}

int32_t mtlq_buffer_wrap(mtlq_device *device, void *data, uint64_t num_bytes, mtlq_buffer **out)
{
    if (out)
        *out = NULL;
    if (!device || !data || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "buffer_wrap: NULL argument");
    if (!num_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "buffer_wrap: no bytes");
    mtlq_lock(device);
    int32_t status = create_buffer(device, MTLQ_WRAPPED, data, num_bytes, 0, out);
    mtlq_unlock(device);
    return status;
}

int32_t mtlq_sparse_create(mtlq_device *device, uint64_t num_bytes, uint32_t page_bytes,
                           mtlq_buffer **out)
{
    if (out)
        *out = NULL;
    if (!device || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "sparse_create: NULL argument");
    int32_t status = check_size(device, "sparse_create", num_bytes);
    if (!status)
        status = check_pages(device, "sparse_create", num_bytes, page_bytes);
    if (status)
        return status;
    mtlq_lock(device);
    status = create_buffer(device, MTLQ_SPARSE, NULL, num_bytes, page_bytes, out);
    mtlq_unlock(device);
    return status;
}

int32_t mtlq_buffer_contents(mtlq_buffer *buffer, void **out)
{
    if (out)
        *out = NULL;
    if (!buffer || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "buffer_contents: NULL argument");
    if (!buffer->contents)
        return mtlq_fail(MTLQ_E_UNSUPPORTED,
                         "buffer_contents: sparse buffer %u is the device's alone; take the contents "
                         "of the heap it maps",
                         buffer->object.id);
    *out = buffer->contents;
    return MTLQ_OK;
}

uint32_t mtlq_buffer_id(const mtlq_buffer *buffer)
{
    return buffer ? buffer->object.id : MTLQ_NO_ID;
}

void mtlq_buffer_free(mtlq_buffer *buffer)
{
    mtlq_object_free((mtlq_object *)buffer);
}

/* ---- heaps --------------------------------------------------------------------------------- */

static void destroy_heap(mtlq_object *object)
{
    mtlq_heap *heap = (mtlq_heap *)object;
    if (heap->is_created)
        object->device->backend->heap_free(heap);
}

static int32_t create_heap(mtlq_device *device, uint64_t num_bytes, uint32_t page_bytes,
                           mtlq_heap **out)
{
    mtlq_object *object;
    int32_t status =
        mtlq_object_create(device, MTLQ_KIND_HEAP, sizeof(mtlq_heap), destroy_heap, &object);
    if (status)
        return status;
    mtlq_heap *heap = (mtlq_heap *)object;
    heap->num_bytes = num_bytes;
    heap->page_bytes = page_bytes;
    status = device->backend->heap_create(heap);
    if (status) {
        mtlq_object_release(object);
        return status;
    }
    heap->is_created = true;
    *out = heap;
    return MTLQ_OK;
}

int32_t mtlq_heap_create(mtlq_device *device, uint64_t num_bytes, uint32_t page_bytes,
                         mtlq_heap **out)
{
    if (out)
        *out = NULL;
    if (!device || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "heap_create: NULL argument");
    int32_t status = check_size(device, "heap_create", num_bytes);
    if (!status)
        status = check_pages(device, "heap_create", num_bytes, page_bytes);
    if (status)
        return status;
    mtlq_lock(device);
    status = create_heap(device, num_bytes, page_bytes, out);
    mtlq_unlock(device);
    return status;
}

uint32_t mtlq_heap_id(const mtlq_heap *heap)
{
    return heap ? heap->object.id : MTLQ_NO_ID;
}

int32_t mtlq_heap_contents(mtlq_heap *heap, void **out)
{
    if (out)
        *out = NULL;
    if (!heap || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "heap_contents: NULL argument");
    *out = heap->contents;
    return MTLQ_OK;
}

int32_t mtlq_heap_free(mtlq_heap *heap)
{
    if (!heap)
        return MTLQ_OK;
    mtlq_lock(heap->object.device);
    if (heap->num_mapped) {
        mtlq_unlock(heap->object.device);
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "heap_free: heap %u is still mapped at %llu pages; unmap them, or free the "
                         "sparse buffers and the plans that use them",
                         heap->object.id, (unsigned long long)heap->num_mapped);
    }
    mtlq_object_release_and_unlock((mtlq_object *)heap);
    return MTLQ_OK;
}

/* ---- map ----------------------------------------------------------------------------------- */

/* Whether the operating system keeps neighbouring pages in one mapping. */
static bool is_joined(const mtlq_page *left, const mtlq_page *right)
{
    return left->heap == right->heap && (!left->heap || left->heap_page + 1 == right->heap_page);
}

static uint32_t num_seams(const mtlq_buffer *buffer, uint64_t page)
{
    const mtlq_page *pages = buffer->pages;
    uint64_t last = buffer->num_bytes / buffer->page_bytes - 1;
    return (page > 0 && !is_joined(&pages[page - 1], &pages[page])) +
           (page < last && !is_joined(&pages[page], &pages[page + 1]));
}

static void write_page(mtlq_buffer *buffer, uint64_t page, mtlq_page value)
{
    mtlq_page *entry = &buffer->pages[page];
    mtlq_device *device = buffer->object.device;
    device->num_mappings -= num_seams(buffer, page);
    if (entry->heap)
        entry->heap->num_mapped--;
    *entry = value;
    if (entry->heap)
        entry->heap->num_mapped++;
    device->num_mappings += num_seams(buffer, page);
}

static int32_t check_op(const mtlq_device *device, const mtlq_map_op *op, uint32_t index)
{
    if (op->kind != MTLQ_MAP && op->kind != MTLQ_UNMAP)
        return mtlq_fail(MTLQ_E_ARGUMENT, "map operation %u: unknown kind %u", index, op->kind);
    if (op->reserved)
        return mtlq_fail(MTLQ_E_ARGUMENT, "map operation %u: reserved is not zero", index);
    const mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, op->buffer);
    if (!buffer || buffer->memory != MTLQ_SPARSE)
        return mtlq_fail(buffer ? MTLQ_E_ARGUMENT : MTLQ_E_NOT_FOUND,
                         "map operation %u: %u is not the id of a sparse buffer", index, op->buffer);
    uint64_t num_pages = buffer->num_bytes / buffer->page_bytes;
    if (op->page > num_pages || op->num_pages > num_pages - op->page)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "map operation %u: pages from %llu, %llu of them, but buffer %u has %llu",
                         index, (unsigned long long)op->page, (unsigned long long)op->num_pages,
                         op->buffer, (unsigned long long)num_pages);
    if (op->kind == MTLQ_UNMAP) {
        if (op->heap != MTLQ_NO_ID || op->heap_page)
            return mtlq_fail(MTLQ_E_ARGUMENT,
                             "map operation %u: unmap takes heap MTLQ_NO_ID and heap_page 0", index);
        return MTLQ_OK;
    }
    const mtlq_heap *heap = mtlq_object_find(device, MTLQ_KIND_HEAP, op->heap);
    if (!heap)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "map operation %u: no heap has id %u", index, op->heap);
    if (heap->page_bytes != buffer->page_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "map operation %u: pages of buffer %u are %u bytes, of heap %u %u", index,
                         op->buffer, buffer->page_bytes, op->heap, heap->page_bytes);
    num_pages = heap->num_bytes / heap->page_bytes;
    if (op->heap_page > num_pages || op->num_pages > num_pages - op->heap_page)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "map operation %u: heap pages from %llu, %llu of them, but heap %u has %llu",
                         index, (unsigned long long)op->heap_page, (unsigned long long)op->num_pages,
                         op->heap, (unsigned long long)num_pages);
    return MTLQ_OK;
}

/* Writes an operation into the page table; old receives what was there. */
static void write_op(mtlq_device *device, const mtlq_map_op *op, mtlq_page *old)
{
    mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, op->buffer);
    mtlq_heap *heap = NULL;
    if (op->kind == MTLQ_MAP)
        heap = mtlq_object_find(device, MTLQ_KIND_HEAP, op->heap);
    for (uint64_t i = 0; i < op->num_pages; i++) {
        old[i] = buffer->pages[op->page + i];
        mtlq_page value = {heap, heap ? op->heap_page + i : 0};
        write_page(buffer, op->page + i, value);
    }
}

static void undo_op(mtlq_device *device, const mtlq_map_op *op, const mtlq_page *old)
{
    mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, op->buffer);
    for (uint64_t i = 0; i < op->num_pages; i++)
        write_page(buffer, op->page + i, old[i]);
}

/* The page tables first: they tell whether the mappings stay within the limit after every operation. */
static int32_t write_ops(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops,
                         mtlq_page *old)
{
    for (uint32_t i = 0; i < num_ops; i++) {
        write_op(device, &ops[i], old);
        old += ops[i].num_pages;
        if (!device->max_mappings || device->num_mappings <= device->max_mappings)
            continue;
        uint32_t wanted = device->num_mappings;
        for (uint32_t j = i + 1; j-- > 0;) {
            old -= ops[j].num_pages;
            undo_op(device, &ops[j], old);
        }
        return mtlq_fail(MTLQ_E_LIMIT,
                         "map operation %u of %u needs %u mappings, the system allows %u; raise it "
                         "with sysctl vm.max_map_count, or use longer runs of heap pages",
                         i, num_ops, wanted, device->max_mappings);
    }
    return MTLQ_OK;
}

#define MAX_PAGES_PER_CALL (1ull << 32)

int32_t mtlq_map_locked(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    int32_t status = mtlq_check_usable(device);
    if (status || !num_ops)
        return status;
    if (!ops)
        return mtlq_fail(MTLQ_E_ARGUMENT, "%u map operations, but ops is NULL", num_ops);
    uint64_t num_pages = 0;
    for (uint32_t i = 0; i < num_ops; i++) {
        status = check_op(device, &ops[i], i);
        if (status)
            return status;
        num_pages += ops[i].num_pages;
        if (num_pages > MAX_PAGES_PER_CALL)
            return mtlq_fail(MTLQ_E_ARGUMENT, "map: more than %llu pages in one call",
                             MAX_PAGES_PER_CALL);
    }
    mtlq_page *old = malloc((num_pages + 1) * sizeof *old);
    if (!old)
        return mtlq_fail(MTLQ_E_NOMEM, "no memory to map %llu pages", (unsigned long long)num_pages);
    status = write_ops(device, ops, num_ops, old);
    free(old);
    if (status)
        return status;
    status = device->backend->map(device, ops, num_ops);
    if (status)
        device->lost = true; /* the page tables no longer say what is mapped */
    return status;
}

int32_t mtlq_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    if (!device)
        return mtlq_fail(MTLQ_E_ARGUMENT, "map: device is NULL");
    mtlq_lock(device);
    int32_t status = mtlq_map_locked(device, ops, num_ops);
    mtlq_unlock(device);
    return status;
}
