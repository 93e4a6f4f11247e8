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

/* What one of 64 threads has of DIM values. */
template <int DIM> struct thread_values;

template <> struct thread_values<128> {
    typedef float2 type;
    static inline float2 load(device const half *p) { return float2(*(device const half2 *)p); }
};

template <> struct thread_values<256> {
    typedef float4 type;
    static inline float4 load(device const half *p) { return float4(*(device const half4 *)p); }
};

/* Attention of one head of one row, over num_used parts of the cache, to o; at_head counts heads
 * [R, H]. A part has DIM values weighted by e^(score - m), and (m, sum of the weights). */
template <int DIM>
inline void merge_parts(device const float *parts, device const float2 *largest_and_sum,
                        uint num_used, device const float *qg, device float *o, ulong at_head,
                        constant mtlq_attention_args &args, uint thread_index)
{
    typedef typename thread_values<DIM>::type values;
    device const values *part = (device const values *)parts + thread_index;
    float largest = LOWEST_SCORE, sum = 0.0f;
    for (uint i = 0; i < num_used; ++i)
        largest = max(largest, largest_and_sum[i].x);
    values out = values(0.0f);
    for (uint i = 0; i < num_used; ++i) {
        const float weight = exp(largest_and_sum[i].x - largest);
        sum = fma(weight, largest_and_sum[i].y, sum);
        out = out + part[i * 64] * weight;
    }
    out = out * (1.0f / sum);
    if (args.gated)
        out = out * sigmoid(((device const values *)qg)[(2 * at_head + 1) * 64 + thread_index]);
    ((device values *)o)[at_head * 64 + thread_index] = out;
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
