#include "formats.h"

/* A thread decodes 16 values. An id outside of the table (never the engine's) reads its last
 * row. */
template <typename Format>
kernel void embed(device const uint *header [[buffer(0)]],
                  device const int *input_ids [[buffer(1)]],
                  device const uchar *table [[buffer(2)]],
                  device float4 *x [[buffer(3)]],
                  constant mtlq_embed_args &args [[buffer(ARGS)]],
                  uint2 position [[thread_position_in_grid]])
{
    const uint chunk = position.x, row = position.y;
    if (row >= header[MTLQ_ROWS] || chunk >= args.dim / 16)
        return;
    const uint id = min(uint(input_ids[row]), args.num_table_rows - 1);
    float4 values[4];
    Format::decode(table + id * args.row_bytes, chunk, values);
    UNROLL
    for (uint i = 0; i < 4; ++i)
        x[ulong(row) * (args.dim / 4) + 4 * chunk + i] = values[i];
}

#define INSTANCE(type, Format) INSTANTIATE("embed_" #type, embed<Format>)
FOR_EACH_FORMAT(INSTANCE)
