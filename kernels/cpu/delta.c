/* delta.c: the gated delta rule token by token. The columns of the state do not depend on one another: a
 * stripe of 32 columns goes through all rows of its sequence while it stays in the first-level cache. */
#include "delta_rows.h"

#define CACHE_LINE 64u

/* One row of one head, and where its state stripe comes from and goes to. */
typedef struct delta_step {
    const float *q, *k, *v;
    float decay, beta; /* exp(g), sigmoid(b) */
    float *o;
    float *d; /* where the tape keeps it, or NULL */
    const float *from;
    uint64_t from_stride;
    float *to;
    uint64_t to_stride;
    const char *ahead; /* 2 key_dim cache lines that a later step reads, or NULL */
} delta_step;

/* d = beta (v - decay S^T k);  S = decay S + k d^T;  o = S^T q. Sums over the key index: the even terms and
 * the odd terms, each an fma chain, then even + odd. */
static inline __attribute__((always_inline)) void run_step(const delta_step *step, uint32_t key_dim,
                                                           const bool is_streamed, const bool is_ahead)
{
    lanes seen[2][STRIPE_LANES], out[2][STRIPE_LANES], d[STRIPE_LANES];
    lanes decay = lanes_splat(step->decay);
    const float *q = step->q, *k = step->k, *from = step->from;
    float *to = step->to;
    uint64_t from_stride = step->from_stride, to_stride = step->to_stride;

    for (uint32_t j = 0; j < STRIPE_LANES; j++) {
        seen[0][j] = seen[1][j] = out[0][j] = out[1][j] = lanes_zero();
    }
    for (uint64_t i = 0; i < key_dim; i += 2) {
        for (uint32_t odd = 0; odd < 2; odd++, from += from_stride) {
            if (is_ahead) {
                __builtin_prefetch(step->ahead + (i + odd) * CACHE_LINE, 0, 2);
            }
            lanes k_i = lanes_splat(k[i + odd]);
            for (uint32_t j = 0; j < STRIPE_LANES; j++) {
                seen[odd][j] = lanes_fma(lanes_load(from + j * LANES), k_i, seen[odd][j]);
            }
        }
    }
    for (uint32_t j = 0; j < STRIPE_LANES; j++) {
        lanes sum = lanes_add(seen[0][j], seen[1][j]);
        lanes v = lanes_load(step->v + j * LANES);
        d[j] = lanes_mul(lanes_splat(step->beta), lanes_fma(sum, lanes_splat(-step->decay), v));
        if (step->d) {
            lanes_store(step->d + j * LANES, d[j]);
        }
    }
    from = step->from;
    for (uint64_t i = 0; i < key_dim; i += 2) {
        for (uint32_t odd = 0; odd < 2; odd++, from += from_stride, to += to_stride) {
            if (is_ahead) {
                __builtin_prefetch(step->ahead + (key_dim + i + odd) * CACHE_LINE, 0, 2);
            }
            lanes k_i = lanes_splat(k[i + odd]), q_i = lanes_splat(q[i + odd]);
            for (uint32_t j = 0; j < STRIPE_LANES; j++) {
                lanes s = lanes_fma(k_i, d[j], lanes_mul(lanes_load(from + j * LANES), decay));
                if (is_streamed) {
                    lanes_stream(to + j * LANES, s);
                } else {
                    lanes_store(to + j * LANES, s);
                }
                out[odd][j] = lanes_fma(s, q_i, out[odd][j]);
            }
        }
    }
    for (uint32_t j = 0; j < STRIPE_LANES; j++) {
        lanes_store(step->o + j * LANES, lanes_add(out[0][j], out[1][j]));
    }
}

static void run_step_within(const delta_step *step, uint32_t key_dim)
{
    run_step(step, key_dim, false, false);
}

/* A new state is not read again in this call, so it goes past the caches. */
static bool can_stream(const float *state, uint64_t stride)
{
    return (uintptr_t)state % CACHE_LINE == 0 && stride % LANES == 0;
}

static void run_last_step(const delta_step *step, uint32_t key_dim, bool is_streamed)
{
    if (is_streamed && step->ahead) {
        run_step(step, key_dim, true, true);
    } else if (is_streamed) {
        run_step(step, key_dim, true, false);
    } else if (step->ahead) {
        run_step(step, key_dim, false, true);
    } else {
        run_step(step, key_dim, false, false);
    }
}

static void store_stripe(const float *stripe, const mtlq_delta_args *args, float *state)
{
    bool is_streamed = can_stream(state, args->value_dim);
    for (uint32_t i = 0; i < args->key_dim; i++, stripe += STRIPE, state += args->value_dim) {
        for (uint32_t j = 0; j < STRIPE; j += LANES) {
            if (is_streamed) {
                lanes_stream(state + j, lanes_load(stripe + j));
            } else {
                lanes_store(state + j, lanes_load(stripe + j));
            }
        }
    }
}

/* Rows are far apart: no hardware brings the next one in. */
static void prefetch_row(const delta_rows *rows, uint32_t t, uint32_t key_dim, uint32_t column)
{
    uint64_t offset = t * rows->row_stride;
    for (uint32_t i = 0; i < key_dim; i += LANES) {
        __builtin_prefetch(rows->q + offset + i);
        __builtin_prefetch(rows->k + offset + i);
    }
    for (uint32_t j = 0; j < STRIPE; j += LANES) {
        __builtin_prefetch(rows->v + offset + column + j);
    }
}

/* What row t adds to the tape beside d: the first stripe does, as it is the same for all. */
static void record_row(const delta_rows *rows, uint32_t t, uint32_t key_dim, float decay)
{
    float *row = rows->record + t * rows->tape_stride;
    row[rows->tape_decay] = decay;
    if (rows->records_k) {
        memcpy(row + rows->tape_k, rows->k + t * rows->row_stride, key_dim * sizeof *row);
    }
}

/* Columns [column, column + STRIPE) of one head through all rows of its sequence. */
static void run_stripe(const delta_rows *rows, const mtlq_delta_args *args, uint32_t column,
                       const char *ahead, float *stripe)
{
    delta_step step = {.from = stripe, .from_stride = STRIPE, .to = stripe, .to_stride = STRIPE};
    bool records_states = rows->record && args->layout == MTLQ_STATES;
    bool records_tape = rows->record && !records_states;
    bool writes_first = records_tape || rows->num_rows == 0;
    if (!rows->old_state) {
        memset(stripe, 0, sizeof *stripe * STRIPE * args->key_dim);
    } else if (rows->num_pending > 0 || writes_first) {
        replay(rows, args, column, stripe, STRIPE);
    } else {
        step.from = rows->old_state + column;
        step.from_stride = args->value_dim;
    }
    if (writes_first) {
        store_stripe(stripe, args, rows->new_state + column);
    }
    float decays[LANES], betas[LANES];
    for (uint32_t t = 0; t < rows->num_rows; t++) {
        if (t % LANES == 0) {
            lanes g, beta;
            delta_gates(rows, t, &g, &beta);
            lanes_store(decays, lanes_exp(g));
            lanes_store(betas, beta);
        }
        step.q = rows->q + t * rows->row_stride;
        step.k = rows->k + t * rows->row_stride;
        step.v = rows->v + t * rows->row_stride + column;
        step.decay = decays[t % LANES];
        step.beta = betas[t % LANES];
        step.o = rows->o + t * rows->o_stride + column;
        if (records_tape) {
            step.d = rows->record + t * rows->tape_stride + rows->tape_d + column;
            if (column == 0) {
                record_row(rows, t, args->key_dim, step.decay);
            }
        }
        if (t + 1 < rows->num_rows) {
            prefetch_row(rows, t + 1, args->key_dim, column);
            run_step_within(&step, args->key_dim);
        } else {
            if (!rows->record) {
                step.to = rows->new_state + column;
                step.to_stride = args->value_dim;
            }
            step.ahead = ahead;
            run_last_step(&step, args->key_dim, !rows->record && can_stream(step.to, step.to_stride));
        }
        if (records_states) {
            store_stripe(stripe, args, rows->record + t * rows->tape_stride + rows->tape_state + column);
        }
        step.from = stripe;
        step.from_stride = STRIPE;
    }
}

void MTLQ_NAME(delta)(const mtlq_call *call)
{
    const mtlq_delta_args *args = call->args;
    uint64_t num_sequences = mtlq_rows(call, MTLQ_SEQUENCES);
    uint64_t num_stripes = args->value_dim / STRIPE;
    uint64_t ahead_bytes = 2ull * args->key_dim * CACHE_LINE; /* per stripe: all stripes, the whole state */

    /* Item = (head, sequence, stripe), heads outermost: even shares whatever the lengths of the sequences. */
    uint64_t begin, end;
    mtlq_share(call, args->num_value_heads * num_sequences * num_stripes, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t head = item / num_stripes, stripe = item % num_stripes;
        delta_rows rows = delta_rows_of(call, head / num_sequences, head % num_sequences);
        const char *ahead = NULL;
        if (item - stripe + num_stripes <
            end) { /* the next head's state comes in while this one is worked on */
            delta_rows next = delta_rows_of(call, (head + 1) / num_sequences, (head + 1) % num_sequences);
            ahead = next.old_state ? (const char *)next.old_state + stripe * ahead_bytes : NULL;
        }
        run_stripe(&rows, args, (uint32_t)stripe * STRIPE, ahead, call->scratch);
    }
    lanes_stream_end();
}
