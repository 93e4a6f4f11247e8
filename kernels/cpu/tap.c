/* tap.c: rows of a layer's output into their columns of the features that a drafter reads. */
#include <string.h>

#include "isa.h"

void MTLQ_NAME(tap)(const mtlq_call *call)
{
    const mtlq_tap_args *args = call->args;
    const float *x = call->buffers[1];
    float *features = (float *)call->buffers[2] + (uint64_t)mtlq_rows(call, MTLQ_FEATURE_ROW) * args->stride;

    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, args->rows), &begin, &end);
    for (uint64_t row = begin; row < end; row++) {
        memcpy(features + row * args->stride + args->column, x + row * args->dim, args->dim * sizeof *x);
    }
}
