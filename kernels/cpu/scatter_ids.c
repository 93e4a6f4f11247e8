/* scatter_ids.c: the drafted tokens into the rows of the batch that verifies them. */
#include "isa.h"

void MTLQ_NAME(scatter_ids)(const mtlq_call *call)
{
    const mtlq_scatter_ids_args *args = call->args;
    const int32_t *ids = call->buffers[1];
    const int32_t *target_rows = call->buffers[2];
    int32_t *input_ids = call->buffers[3];

    for (uint32_t i = 0; call->worker == 0 && i < mtlq_rows(call, args->rows); i++) {
        input_ids[target_rows[i]] = ids[i];
    }
}
