/* page_table.m: sparse buffers where Metal has none: a table with the GPU address of each page, 0 where
 * nothing is mapped, which a kernel cannot take for memory. Heaps are plain buffers there. */
#include <string.h>

#include "metal.h"

id<MTLBuffer> metal_new_page_table(MtlqMetal *metal, const mtlq_buffer *buffer)
{
    uint64_t num_bytes = buffer->num_bytes / buffer->page_bytes * sizeof(uint64_t);
    id<MTLBuffer> table = [metal->gpu newBufferWithLength:num_bytes options:UNTRACKED];
    if (table)
        memset(table.contents, 0, num_bytes);
    return table;
}

static uint64_t page_address(const mtlq_page *page)
{
    if (!page->heap)
        return 0;
    MtlqHeap *memory = (__bridge MtlqHeap *)page->heap->handle;
    return memory->contents.gpuAddress + page->heap_page * page->heap->page_bytes;
}

/* What the tables must say when all operations are done, one operation's pages after the other's: so two
 * that overlap agree, and the copies need no order. */
static void write_entries(uint64_t *entries, const mtlq_device *device, const mtlq_map_op *ops,
                          uint32_t num_ops)
{
    for (uint32_t i = 0; i < num_ops; i++) {
        const mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, ops[i].buffer);
        for (uint64_t page = 0; page < ops[i].num_pages; page++)
            *entries++ = page_address(&buffer->pages[ops[i].page + page]);
    }
}

static void copy_entries(id<MTLBlitCommandEncoder> encoder, id<MTLBuffer> entries,
                         const mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    uint64_t first = 0;
    for (uint32_t i = 0; i < num_ops; i++) {
        const mtlq_buffer *buffer = mtlq_object_find(device, MTLQ_KIND_BUFFER, ops[i].buffer);
        MtlqViews *memory = (__bridge MtlqViews *)buffer->handle;
        if (!ops[i].num_pages)
            continue;
        [encoder copyFromBuffer:entries
                   sourceOffset:first * sizeof(uint64_t)
                       toBuffer:memory->views[0]
              destinationOffset:ops[i].page * sizeof(uint64_t)
                           size:ops[i].num_pages * sizeof(uint64_t)];
        first += ops[i].num_pages;
    }
}

/* The process never writes to a table itself: an earlier submission may still read it. */
int32_t metal_update_page_tables(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops)
{
    MtlqMetal *metal = metal_of(device);
    uint64_t num_pages = 0;
    for (uint32_t i = 0; i < num_ops; i++)
        num_pages += ops[i].num_pages;
    if (!num_pages)
        return MTLQ_OK;
    id<MTLBuffer> entries = [metal->gpu newBufferWithLength:num_pages * sizeof(uint64_t)
                                                    options:UNTRACKED];
    id<MTLCommandBuffer> work = entries ? metal_begin_work(metal) : nil;
    id<MTLBlitCommandEncoder> encoder = [work blitCommandEncoder];
    if (!encoder)
        return mtlq_fail(MTLQ_E_NOMEM, "map: Metal gives no buffer for %llu pages, or no encoder",
                         (unsigned long long)num_pages);
    write_entries(entries.contents, device, ops, num_ops);
    copy_entries(encoder, entries, device, ops, num_ops);
    [encoder endEncoding];
    metal_commit_work(metal, work);
    return MTLQ_OK;
}

/* macOS 15 has the residency set of the queue for it. */
void metal_use_heaps(mtlq_device *device, id<MTLComputeCommandEncoder> encoder)
{
    if (@available(macOS 15.0, *))
        return;
    for (uint32_t i = 0; i < device->num_objects; i++) {
        if (device->objects[i]->kind != MTLQ_KIND_HEAP)
            continue;
        const mtlq_heap *heap = (const mtlq_heap *)device->objects[i];
        MtlqHeap *memory = (__bridge MtlqHeap *)heap->handle;
        [encoder useResource:memory->contents usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    }
}
