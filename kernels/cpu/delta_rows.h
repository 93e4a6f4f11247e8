/* delta_rows.h: what delta and delta_chunk read: one value head of one sequence of the batch. */
#ifndef MTLQ_DELTA_ROWS_H
#define MTLQ_DELTA_ROWS_H

#include <stdbool.h>

#include "lanes_math.h"

#define STRIPE_LANES 2u
#define STRIPE       (STRIPE_LANES * LANES) /* columns of the state that are worked on at a time */

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
    const float *tape; /* row 0 of those to replay */
    uint32_t num_pending;
    float *record; /* row 0 of what this step records, NULL = unbound */
    uint64_t tape_stride;
    uint64_t tape_k, tape_d, tape_decay; /* this head's in a row of the tape */
    uint64_t tape_state;                 /* or this head's state, in that layout */
    bool records_k;                      /* the first value head of a key head does */
} delta_rows;

/* Value head h of sequence s. */
static inline delta_rows delta_rows_of(const mtlq_call *call, uint64_t h, uint64_t s)
{
    const mtlq_delta_args *args = call->args;
    const int32_t *query_start_loc = call->buffers[1];
    const int32_t *sequence_slots = call->buffers[2];
    const int32_t *kv_valid = call->buffers[3];
    const float *y = call->buffers[5];
    const int32_t *state = call->buffers[12];
    uint64_t dk = args->key_dim, dv = args->value_dim, hv = args->num_value_heads, hk = args->num_key_heads;
    uint64_t first = (uint64_t)query_start_loc[s], num_channels = 2 * hk * dk + hv * dv;
    uint64_t slot = (uint64_t)sequence_slots[s], bank = (uint64_t)((const int32_t *)call->buffers[4])[s];
    float *states = (float *)call->buffers[10] + slot * args->slot_stride + h * dk * dv;
    float *tape = call->buffers[14], *record = tape + (1 - bank) * args->tape_bank_stride;
    const float *row = y + first * num_channels;
    delta_rows rows = {
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
        .old_state = kv_valid[s] ? states + bank * args->bank_stride : NULL,
        .new_state = states + (1 - bank) * args->bank_stride,
        .tape = tape + bank * args->tape_bank_stride + slot * args->tape_slot_stride,
        .num_pending = (uint32_t)((const int32_t *)call->buffers[13])[s],
        .record = state[s] == MTLQ_UNBOUND ? NULL : record + (uint64_t)state[s] * args->tape_slot_stride,
        .tape_stride = args->tape_row_stride,
        .tape_k = h % hk * dk,
        .tape_d = hk * dk + h * dv,
        .tape_decay = hk * dk + hv * dv + h,
        .tape_state = h * dk * dv,
        .records_k = h < hk,
    };
    if (args->layout == MTLQ_STATES && rows.num_pending > 0) {
        rows.old_state = rows.tape + (rows.num_pending - 1) * rows.tape_stride + rows.tape_state;
        rows.num_pending = 0;
    }
    return rows;
}

/* Columns [column, column + STRIPE) of the old state, which is not NULL, after the pending rows: for each
 * S = decay S + k d^T as in a step. Two rows of S stay in registers while the tape goes by. */
static inline void replay(const delta_rows *rows, const mtlq_delta_args *args, uint32_t column, float *to,
                          uint64_t to_stride)
{
    for (uint64_t i = 0; i < args->key_dim; i += 2, to += 2 * to_stride) {
        lanes s[2][STRIPE_LANES];
        for (uint32_t odd = 0; odd < 2; odd++) {
            for (uint32_t j = 0; j < STRIPE_LANES; j++) {
                s[odd][j] = lanes_load(rows->old_state + (i + odd) * args->value_dim + column + j * LANES);
            }
        }
        const float *row = rows->tape;
        for (uint32_t t = 0; t < rows->num_pending; t++, row += rows->tape_stride) {
            const float *k = row + rows->tape_k + i, *d = row + rows->tape_d + column;
            lanes decay = lanes_splat(row[rows->tape_decay]);
            for (uint32_t j = 0; j < STRIPE_LANES; j++) {
                lanes d_j = lanes_load(d + j * LANES);
                s[0][j] = lanes_fma(lanes_splat(k[0]), d_j, lanes_mul(s[0][j], decay));
                s[1][j] = lanes_fma(lanes_splat(k[1]), d_j, lanes_mul(s[1][j], decay));
            }
        }
        for (uint32_t j = 0; j < STRIPE_LANES; j++) {
            lanes_store(to + j * LANES, s[0][j]);
            lanes_store(to + to_stride + j * LANES, s[1][j]);
        }
    }
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
