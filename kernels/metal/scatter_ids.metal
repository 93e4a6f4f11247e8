#include "common.h"

/* A thread has one row. */
kernel void scatter_ids(device const uint *header [[buffer(0)]],
                        device const int *ids [[buffer(1)]],
                        device const int *target_rows [[buffer(2)]],
                        device int *input_ids [[buffer(3)]],
                        constant mtlq_scatter_ids_args &args [[buffer(ARGS)]],
                        uint row [[thread_position_in_grid]])
{
    if (row < header[args.rows])
        input_ids[target_rows[row]] = ids[row];
}
