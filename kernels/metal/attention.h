/* attention.h: shared by the decode and the prefill kernel. All bind header, query_start_loc,
 * sequence_slots, batched_kv_valid, q, k_cache, v_cache, qg, o, workspace. */
#ifndef MTLQ_ATTENTION_H
#define MTLQ_ATTENTION_H

#include "cache.h"

#define BLOCK 128 /* positions of a cache tile */

/* Sequences of at most this many rows are decoded (split over the cache), the others are tiled. */
constant uint MAX_DECODE_ROWS [[function_constant(0)]];

/* The positions [begin, end) that a query sees. */
struct visible_range {
    uint begin, end;
};

/* Neither end falls from one query of a sequence to the next. */
inline visible_range visible_to(constant mtlq_attention_args &args, uint position,
                                uint end_position)
{
    const uint window = args.window > 0 ? args.window : 0xFFFFFFFF;
    const uint ahead = args.causal ? 1 : window; /* of its own position on */
    visible_range seen;
    seen.begin = position < window ? 0 : position - window + 1;
    seen.end = position + min(ahead, end_position - position);
    return seen;
}

inline bool is_within(uint position, uint begin, uint end)
{
    return position >= begin && position < end;
}

/* One KV head in the tile of a position. A tile is [kv_heads, head_dim * BLOCK] halfs. */
template <int DIM>
inline device const half *head_tile(device const half *cache, uint slot, uint position,
                                    constant mtlq_attention_args &args, uint kv_head)
{
    const ulong tile = (ulong(slot) * args.max_context + position) / BLOCK;
    const uint head_halfs = DIM * BLOCK;
    return cache_tile(cache, tile, args.num_kv_heads * head_halfs) + kv_head * head_halfs;
}

#endif
