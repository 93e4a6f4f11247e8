/* pages.h: memory of the cpu device; the processor's own page tables are those of sparse buffers. */
#ifndef MTLQ_PAGES_H
#define MTLQ_PAGES_H

#include "../device.h"

int32_t mtlq_pages_buffer_create(mtlq_buffer *buffer);
void mtlq_pages_buffer_free(mtlq_buffer *buffer);
int32_t mtlq_pages_heap_create(mtlq_heap *heap);
void mtlq_pages_heap_free(mtlq_heap *heap);
int32_t mtlq_pages_map(mtlq_device *device, const mtlq_map_op *ops, uint32_t num_ops);

#endif
