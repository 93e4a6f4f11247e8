/* swiglu.c: y = silu(gate) * up. */
#include "lanes_math.h"

void MTLQ_NAME(swiglu)(const mtlq_call *call)
{
    const mtlq_swiglu_args *args = call->args;
    const float *gate = call->buffers[1];
    const float *up = call->buffers[2];
    float *y = call->buffers[3];

    /* Shares are whole lanes of the flat array: a row may be divided among workers. */
    uint64_t count = (uint64_t)mtlq_rows(call, args->rows) * args->dim;
    uint64_t begin, end;
    mtlq_share(call, (count + LANES - 1) / LANES, &begin, &end);
    for (uint64_t i = begin * LANES; i < end * LANES; i += LANES) {
        lanes activated = lanes_silu(lanes_load_n(gate + i, count - i));
        lanes_store_n(y + i, lanes_mul(activated, lanes_load_n(up + i, count - i)), count - i);
    }
}
