#include "order.h"

/* First the TOP best logits of every CHUNK of a row, then of the whole row, then the path. The
 * workspace has the ids of the first, and then of the second in front; -1 where there are fewer. */

#define TOP 16
#define CHUNK 8192
#define SIMDGROUPS 8
#define CHUNK_VALUES (CHUNK / (32 * SIMDGROUPS)) /* of a lane */
#define ROW_VALUES 16 /* of a lane: up to 32 chunks */

#define LOWEST_ORDER 0x007FFFFF /* of -infinity */

/* NaN counts as -infinity, not as nothing. */
inline uint order_of_logit(float value)
{
    return max(order_of(value), uint(LOWEST_ORDER));
}

/* What a lane offers. */
template <int N>
struct candidates {
    uint order[N]; /* 0: none, with NO_INDEX */
    uint index[N];
};

/* The TOP best of a SIMD group, best first: lane i has the i-th. */
template <int N>
inline uint2 take_top(thread const candidates<N> &offered, uint lane)
{
    uint2 last = uint2(0xFFFFFFFF, 0), mine = uint2(0, NO_INDEX);
    for (uint i = 0; i < TOP; ++i) {
        uint2 best = uint2(0, NO_INDEX);
        UNROLL
        for (int j = 0; j < N; ++j) {
            const uint2 candidate = uint2(offered.order[j], offered.index[j]);
            if (is_better(last, candidate) && is_better(candidate, best))
                best = candidate;
        }
        last = simd_best(best);
        if (lane == i)
            mine = last;
    }
    return mine;
}

/* Grid: chunks, rows; 32 SIMDGROUPS threads. */
kernel void select_path_top(device const uint *header [[buffer(0)]],
                            device const float *logits [[buffer(3)]],
                            device int *workspace [[buffer(8)]],
                            constant mtlq_select_path_args &args [[buffer(ARGS)]],
                            uint2 group [[threadgroup_position_in_grid]],
                            uint2 num_groups [[threadgroups_per_grid]],
                            uint lane [[thread_index_in_simdgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint2 partial[SIMDGROUPS * TOP];
    if (group.y >= header[MTLQ_LOGIT_ROWS])
        return;
    device const float *row = logits + ulong(group.y) * args.stride;
    const uint first = group.x * CHUNK + simdgroup * (CHUNK / SIMDGROUPS) + lane;
    candidates<CHUNK_VALUES> values;
    UNROLL
    for (uint i = 0; i < CHUNK_VALUES; ++i) {
        const uint index = first + 32 * i;
        const bool is_token = index < args.num_valid;
        values.order[i] = is_token ? order_of_logit(row[index]) : 0;
        values.index[i] = is_token ? index : NO_INDEX;
    }
    const uint2 own = take_top(values, lane);
    if (lane < TOP)
        partial[simdgroup * TOP + lane] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup > 0)
        return;
    candidates<SIMDGROUPS * TOP / 32> best;
    UNROLL
    for (uint i = 0; i < SIMDGROUPS * TOP / 32; ++i) {
        const uint2 candidate = partial[32 * i + lane];
        best.order[i] = candidate.x;
        best.index[i] = candidate.y;
    }
    const uint2 all = take_top(best, lane);
    if (lane < TOP)
        workspace[(group.y * num_groups.x + group.x) * TOP + lane] = int(all.y);
}

/* Of num_ids candidates of a row to its first TOP. */
inline void merge_chunks(device const float *logits, device int *ids, uint num_ids, uint lane)
{
    candidates<ROW_VALUES> values;
    UNROLL
    for (uint i = 0; i < ROW_VALUES; ++i) {
        const int id = 32 * i + lane < num_ids ? ids[32 * i + lane] : -1;
        values.order[i] = id < 0 ? 0 : order_of_logit(logits[id]);
        values.index[i] = uint(id);
    }
    const uint2 best = take_top(values, lane);
    simdgroup_barrier(mem_flags::mem_device);
    if (lane < TOP)
        ids[lane] = int(best.y);
}

inline float widen(float value)
{
    return value;
}

inline float widen(half value)
{
    return float(value);
}

/* of a bfloat's bits */
inline float widen(ushort value)
{
    return as_type<float>(uint(value) << 16);
}

/* Grid: rows; 32 SIMDGROUPS threads. The threadgroup of the first row of a path goes along it;
 * the SIMD groups share the candidates. */
template <typename T>
kernel void select_path(device const uint *header [[buffer(0)]],
                        device const int *input_ids [[buffer(1)]],
                        device const int *logit_rows [[buffer(2)]],
                        device const float *logits [[buffer(3)]],
                        device const float *h [[buffer(4)]],
                        device const T *predecessor [[buffer(5)]],
                        device const T *successor [[buffer(6)]],
                        device int *ids [[buffer(7)]],
                        device int *workspace [[buffer(8)]],
                        constant mtlq_select_path_args &args [[buffer(ARGS)]],
                        uint first [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float fits[TOP];
    const uint num_rows = header[MTLQ_LOGIT_ROWS], rank = args.rank;
    if (first >= num_rows || (first > 0 && logit_rows[first] == logit_rows[first - 1] + 1))
        return;
    uint end = first + 1;
    while (end < num_rows && logit_rows[end] == logit_rows[end - 1] + 1)
        ++end;
    const uint num_ids = (args.num_valid + CHUNK - 1) / CHUNK * TOP;
    for (uint row = first + simdgroup; row < end; row += SIMDGROUPS)
        merge_chunks(logits + ulong(row) * args.stride, workspace + row * num_ids, num_ids, lane);
    threadgroup_barrier(mem_flags::mem_device);

    int before = input_ids[logit_rows[first] - 1];
    for (uint row = first; row < end; ++row) {
        device const int *top = workspace + row * num_ids;
        device const T *left = predecessor + ulong(before) * rank;
        for (uint i = simdgroup; i < TOP; i += SIMDGROUPS) {
            if (top[i] < 0)
                continue;
            device const T *right = successor + ulong(top[i]) * rank;
            float sum = 0.0f;
            for (uint r = lane; r < rank; r += 32)
                sum = fma(widen(left[r]) * h[row * rank + r], widen(right[r]), sum);
            sum = simd_sum(sum);
            if (lane == 0)
                fits[i] = logits[ulong(row) * args.stride + top[i]] + sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool is_candidate = lane < TOP && top[lane % TOP] >= 0;
        const uint2 best =
            simd_best(uint2(is_candidate ? order_of_logit(fits[lane % TOP]) : 0,
                            is_candidate ? uint(top[lane % TOP]) : NO_INDEX));
        before = int(best.y);
        if (thread_index == 0)
            ids[row] = before;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

INSTANTIATE("select_path_f32", select_path<float>)
INSTANTIATE("select_path_f16", select_path<half>)
INSTANTIATE("select_path_bf16", select_path<ushort>)
