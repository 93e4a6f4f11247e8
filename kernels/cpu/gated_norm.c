/* gated_norm.c: y = o / sqrt(mean(o^2) + eps) * w * silu(z), head by head. */
#include "lanes_math.h"
#include "rows.h"

void MTLQ_NAME(gated_norm)(const mtlq_call *call)
{
    const mtlq_gated_norm_args *args = call->args;
    const float *o = call->buffers[1];
    const float *z = call->buffers[2];
    const float *w = call->buffers[3];
    float *y = call->buffers[4];
    uint32_t dim = args->dim;

    uint64_t begin, end;
    mtlq_share(call, (uint64_t)mtlq_rows(call, args->rows) * args->num_heads, &begin, &end);
    for (uint64_t head = begin; head < end; head++) {
        const float *o_head = o + head * dim;
        lanes factor = lanes_splat(row_inverse_rms(o_head, dim, args->eps));
        for (uint32_t i = 0; i < dim; i += LANES) {
            lanes normed = lanes_mul(lanes_load_n(o_head + i, dim - i), factor);
            normed = lanes_mul(normed, lanes_load_n(w + i, dim - i));
            lanes gate = lanes_silu(lanes_load_n(z + head * dim + i, dim - i));
            lanes_store_n(y + head * dim + i, lanes_mul(normed, gate), dim - i);
        }
    }
}
