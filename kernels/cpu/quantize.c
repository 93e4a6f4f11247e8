/* quantize.c: activations f32 [rows, dim] to int8 records [ceil(dim / 256)][rows]. */
#include "quantize.h"

#include "isa.h"

void MTLQ_NAME(quantize)(const mtlq_call *call)
{
    const mtlq_quantize_args *args = call->args;
    const float *x = call->buffers[1];
    xblock *records = call->buffers[2];
    uint64_t num_rows = mtlq_rows(call, args->rows);
    uint64_t num_blocks = (args->dim + XBLOCK_VALUES - 1u) / XBLOCK_VALUES;
    uint64_t begin, end;
    mtlq_share(call, num_rows * num_blocks, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t row = item / num_blocks, b = item % num_blocks;
        quantize_row_block(x + row * args->dim, args->dim, b, records + b * num_rows + row);
    }
}
