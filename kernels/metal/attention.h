/* attention.h: shared by the decode and the prefill kernel. All bind header, query_start_loc,
 * sequence_slots, batched_kv_valid, q, k_cache, v_cache, qg, o, workspace. */
#ifndef MTLQ_ATTENTION_H
#define MTLQ_ATTENTION_H

#include "common.h"

#define HEAD_DIM 256
#define BLOCK 128 /* positions of a cache tile */

/* Sequences of at most this many rows are decoded (split over the cache), the others are tiled. */
constant uint MAX_DECODE_ROWS [[function_constant(0)]];

/* Offset in halfs of one KV head in the tile of a position. A tile is [kv_heads, HEAD_DIM *
 * BLOCK]. */
inline ulong head_tile(uint slot, uint position, uint max_context, uint num_kv_heads, uint kv_head)
{
    const ulong tile = (ulong(slot) * max_context + position) / BLOCK;
    return (tile * num_kv_heads + kv_head) * (HEAD_DIM * BLOCK);
}

#endif
