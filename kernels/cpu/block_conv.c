/* block_conv.c: dynamic convolution over a row and the row before it in its sequence. */
#include <stdbool.h>

#include "lanes.h"

void MTLQ_NAME(block_conv)(const mtlq_call *call)
{
    const mtlq_block_conv_args *args = call->args;
    const int32_t *row_sequence = call->buffers[1];
    const float *x = call->buffers[2];
    const float *base = (const float *)call->buffers[4] + (uint64_t)args->side * 2 * args->dim;
    float *y = call->buffers[5];
    uint64_t dim = args->dim, num_groups = dim / args->group;

    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, MTLQ_ROWS) * num_groups, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t row = item / num_groups, group = item % num_groups;
        const float *dyn = (const float *)call->buffers[3] + (row * 4 + args->side * 2) * num_groups + group;
        lanes dyn_now = lanes_splat(dyn[0]), dyn_before = lanes_splat(dyn[num_groups]);
        bool is_first = row == 0 || row_sequence[row] != row_sequence[row - 1];
        for (uint64_t i = group * args->group; i < (group + 1) * args->group; i += LANES) {
            lanes before = is_first ? lanes_zero() : lanes_load(x + (row - 1) * dim + i);
            lanes sum = lanes_mul(lanes_add(lanes_load(base + i), dyn_now), lanes_load(x + row * dim + i));
            sum = lanes_fma(lanes_add(lanes_load(base + dim + i), dyn_before), before, sum);
            float *out = y + row * dim + i;
            lanes_store(out, args->accumulate ? lanes_add(lanes_load(out), sum) : sum);
        }
    }
}
