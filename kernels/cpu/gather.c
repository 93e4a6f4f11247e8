/* gather.c: rows of x by index. */
#include <string.h>

#include "isa.h"

void MTLQ_NAME(gather)(const mtlq_call *call)
{
    const mtlq_gather_args *args = call->args;
    const int32_t *indices = call->buffers[1];
    const float *x = call->buffers[2];
    float *y = call->buffers[3];

    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, args->rows), &begin, &end);
    for (uint64_t row = begin; row < end; row++) {
        memcpy(y + row * args->dim, x + (uint64_t)indices[row] * args->dim, args->dim * sizeof *y);
    }
}
