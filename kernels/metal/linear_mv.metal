#include "units.h"

/* y (+)= x W^T for one to four rows of x: each weight is read and decoded once for all of them.
 *
 * A SIMD group makes ROWS elements of each of TOKENS rows of y. The lane a weight falls to and
 * the order of its sum are the same for every TOKENS and ROWS, so a row of y does not depend on
 * how many are computed. Grid: out_dim / (ROWS * SIMD groups), rows / TOKENS. Loads past the
 * last row are clamped, not skipped, so that no branch parts them. */

inline float dot4(float4 a, float4 b)
{
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, a.x * b.x)));
}

inline float dot4(float4 a, float4 b, float sum)
{
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

template <typename Unit, int TOKENS, int ROWS>
kernel void linear_mv(device const uint *header [[buffer(0)]],
                      device const uchar *weights [[buffer(1)]],
                      device const float *x [[buffer(2)]],
                      device float *y [[buffer(3)]],
                      constant mtlq_linear_args &args [[buffer(ARGS)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float table[16];
    if (Unit::USES_TABLE) {
        if (thread_index < 16)
            table[thread_index] = IQ4_VALUES[thread_index];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const uint num_tokens = header[args.rows], first_token = group.y * TOKENS;
    const uint first_out = (group.x * num_simdgroups + simdgroup) * ROWS;
    if (first_token >= num_tokens || first_out >= args.out_dim)
        return;

    device const uchar *base = weights + first_out * args.row_bytes;
    uint offset[ROWS];
    device const float *tokens[TOKENS];
    float sum[ROWS][TOKENS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        offset[r] = min(uint(r), args.out_dim - 1 - first_out) * uint(args.row_bytes);
        UNROLL
        for (int t = 0; t < TOKENS; ++t)
            sum[r][t] = 0.0f;
    }
    UNROLL
    for (int t = 0; t < TOKENS; ++t)
        tokens[t] = x + ulong(min(first_token + t, num_tokens - 1)) * args.in_dim;

    const uint num_units = args.in_dim / Unit::VALUES;
    for (uint unit = lane; unit < num_units; unit += 32) {
        Unit units[ROWS];
        /* min changes nothing, but keeps compilers from a running pointer, two registers, a row. */
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            units[r].load(base + offset[r], min(unit, num_units - 1));
        UNROLL
        for (uint first = 0; first < Unit::VALUES / 8; first += Unit::RUN) {
            float2 dot[ROWS][TOKENS];
            UNROLL
            for (uint part = first; part < first + Unit::RUN; ++part) {
                float4 values[ROWS][2];
                UNROLL
                for (int r = 0; r < ROWS; ++r)
                    units[r].decode(part, table, values[r]);
                UNROLL
                for (int t = 0; t < TOKENS; ++t) {
                    device const float *source = tokens[t] + Unit::position(unit, part);
                    const float4 low = *(device const float4 *)source;
                    const float4 high = *(device const float4 *)(source + Unit::HIGH);
                    UNROLL
                    for (int r = 0; r < ROWS; ++r) {
                        thread const float4 *w = values[r];
                        const float2 before = dot[r][t];
                        dot[r][t].x = part == first ? dot4(w[0], low) : dot4(w[0], low, before.x);
                        dot[r][t].y = part == first ? dot4(w[1], high) : dot4(w[1], high, before.y);
                    }
                }
            }
            UNROLL
            for (int r = 0; r < ROWS; ++r) {
                UNROLL
                for (int t = 0; t < TOKENS; ++t)
                    sum[r][t] = units[r].add(first, dot[r][t], sum[r][t]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        UNROLL
        for (int t = 0; t < TOKENS; ++t) {
            const float value = simd_sum(sum[r][t]);
            if (lane != 0 || first_out + r >= args.out_dim || first_token + t >= num_tokens)
                continue;
            device float *target = y + ulong(first_token + t) * args.out_dim + first_out + r;
            *target = args.accumulate ? *target + value : value;
        }
    }
}

#define INSTANCE(type, Format)                                        \
    INSTANTIATE("linear_" #type "_mv1", linear_mv<unit_##type, 1, 2>) \
    INSTANTIATE("linear_" #type "_mv2", linear_mv<unit_##type, 2, 2>) \
    INSTANTIATE("linear_" #type "_mv3", linear_mv<unit_##type, 3, 2>) \
    INSTANTIATE("linear_" #type "_mv4", linear_mv<unit_##type, 4, 2>)
FOR_EACH_FORMAT(INSTANCE)

#define WIDE(type) INSTANTIATE("linear_" #type "_mv1_wide", linear_mv<unit_##type, 1, 4>)
WIDE(f32)
WIDE(f16)
WIDE(bf16)
WIDE(q8_0)
WIDE(q4_0)
WIDE(iq4_xs)
