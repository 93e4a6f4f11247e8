/* rmsnorm.c: y = x / sqrt(mean(x^2) + eps) * w, row by row. */
#include "rows.h"

void MTLQ_NAME(rmsnorm)(const mtlq_call *call)
{
    const mtlq_rmsnorm_args *args = call->args;
    const float *x = call->buffers[1];
    const float *w = call->buffers[2];
    float *y = call->buffers[3];

    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, args->rows), &begin, &end);
    for (uint64_t row = begin; row < end; row++) {
        const float *x_row = x + row * args->dim;
        float factor = row_inverse_rms(x_row, args->dim, args->eps);
        row_scale(x_row, factor, w, args->dim, y + row * args->dim);
    }
}
