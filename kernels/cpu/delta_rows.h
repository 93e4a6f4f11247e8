/* delta_rows.h: what delta and delta_chunk read: one value head of one sequence of the batch. */
#ifndef MTLQ_DELTA_ROWS_H
#define MTLQ_DELTA_ROWS_H

#include "lanes_math.h"

typedef struct delta_rows {
    const float *q, *k, *v; /* row 0; the next is row_stride further */
    uint64_t row_stride;
    const float *a, *b; /* row 0 of the gate inputs; the next is gate_stride further */
    uint64_t gate_stride;
    float ssm_a, dt_bias;
    float *o; /* row 0; the next is o_stride further */
    uint64_t o_stride;
    uint32_t num_rows;
    const float *old_state; /* [dk][dv], NULL = zero */
    float *new_state;
} delta_rows;

/* Value head h of sequence s. */
static inline delta_rows delta_rows_of(const mtlq_call *call, uint64_t h, uint64_t s)
{
    const mtlq_delta_args *args = call->args;
    const int32_t *query_start_loc = call->buffers[1];
    const int32_t *sequence_slots = call->buffers[2];
    const int32_t *kv_valid = call->buffers[3];
    const int32_t *bank = call->buffers[4];
    const float *y = call->buffers[5];
    float *states = call->buffers[10];
    uint64_t dk = args->key_dim, dv = args->value_dim, hv = args->num_value_heads, hk = args->num_key_heads;
    uint64_t first = (uint64_t)query_start_loc[s], num_channels = 2 * hk * dk + hv * dv;
    float *state = states + (uint64_t)sequence_slots[s] * args->slot_stride + h * dk * dv;
    const float *row = y + first * num_channels;
    return (delta_rows){
        .q = row + h % hk * dk,
        .k = row + (hk + h % hk) * dk,
        .v = row + 2 * hk * dk + h * dv,
        .row_stride = num_channels,
        .a = (const float *)call->buffers[6] + first * hv + h,
        .b = (const float *)call->buffers[7] + first * hv + h,
        .gate_stride = hv,
        .ssm_a = ((const float *)call->buffers[8])[h],
        .dt_bias = ((const float *)call->buffers[9])[h],
        .o = (float *)call->buffers[11] + first * hv * dv + h * dv,
        .o_stride = hv * dv,
        .num_rows = (uint32_t)(query_start_loc[s + 1] - query_start_loc[s]),
        .old_state = kv_valid[s] ? state + (uint64_t)bank[s] * args->bank_stride : NULL,
        .new_state = state + (uint64_t)(1 - bank[s]) * args->bank_stride,
    };
}

/* g = ssm_a softplus(a + dt_bias) and beta = sigmoid(b) of LANES rows from row t on; rows beyond the last
 * give any finite value. */
static inline void delta_gates(const delta_rows *rows, uint32_t t, lanes *g, lanes *beta)
{
    float a[LANES] = {0}, b[LANES] = {0};
    for (uint32_t i = 0; i < LANES && t + i < rows->num_rows; i++) {
        a[i] = rows->a[(t + i) * rows->gate_stride];
        b[i] = rows->b[(t + i) * rows->gate_stride];
    }
    lanes step = lanes_softplus(lanes_add(lanes_load(a), lanes_splat(rows->dt_bias)));
    *g = lanes_mul(lanes_splat(rows->ssm_a), step);
    *beta = lanes_sigmoid(lanes_load(b));
}

#endif
