/* args.h: what each kernel reads and writes. Shared by the C kernels, the Metal kernels and Python.
 *
 * Every kernel binds the batch header first. "rows" in an argument struct is the index of the header
 * word that holds the number of rows to compute, so that one plan serves every step.
 * R = rows of the step, S = sequences, L = rows that need logits. Shapes are row-major, innermost last.
 * Kernel names: the struct's name without mtlq_ and _args; a weight type is a suffix (linear_q4_k). */
#ifndef MTLQ_ARGS_H
#define MTLQ_ARGS_H

#ifdef __METAL_VERSION__
typedef uint uint32_t;
typedef ulong uint64_t;
#else
#include <stdint.h>
#endif

#define MTLQ_ROWS 0        /* header words */
#define MTLQ_SEQUENCES 1
#define MTLQ_LOGIT_ROWS 2
#define MTLQ_FEATURE_ROW 3

#define MTLQ_UNBOUND (-1) /* in state i32[S]: the sequence verifies no draft in this step */

typedef struct mtlq_batch_header {
    uint32_t num_rows;       /* R */
    uint32_t num_sequences;  /* S */
    uint32_t num_logit_rows; /* L */
    uint32_t feature_row;    /* of the step's first row: where tap writes */
    uint32_t reserved[12];
} mtlq_batch_header;

/* x[R, dim] f32 = table[input_ids[R]] dequantised. Suffix: tensor type.
 * Bindings: header, input_ids i32[R], table, x. */
typedef struct mtlq_embed_args {
    uint32_t dim;
    uint32_t num_table_rows;
    uint64_t row_bytes;
} mtlq_embed_args;

/* Activations to the int8 records that integer linear kernels read (see docs/cpu-arithmetic.md).
 * Bindings: header, x f32[rows, dim], xq. cpu only. */
typedef struct mtlq_quantize_args {
    uint32_t dim;
    uint32_t rows;
} mtlq_quantize_args;

/* y[rows, out] (+)= x[rows, in] W[out, in]^T, W in GGUF rows. Suffix: tensor type.
 * Bindings: header, W, x (f32[rows, in]; on the cpu the records of quantize for quantised types), y f32. */
typedef struct mtlq_linear_args {
    uint32_t in_dim;
    uint32_t out_dim;
    uint32_t rows;
    uint32_t accumulate; /* 1: y += */
    uint64_t row_bytes;  /* of one row of W */
} mtlq_linear_args;

/* y[rows, dim] = x / sqrt(mean(x^2) + eps) * w[dim].
 * Bindings: header, x, w f32[dim], y. */
typedef struct mtlq_rmsnorm_args {
    uint32_t dim;
    uint32_t rows;
    float eps;
} mtlq_rmsnorm_args;

/* y[rows, dim] = x[indices[rows], dim]. Bindings: header, indices i32[rows], x, y. */
typedef struct mtlq_gather_args {
    uint32_t dim;
    uint32_t rows;
} mtlq_gather_args;

/* y[rows, dim] = silu(gate) * up. Bindings: header, gate, up, y (y may be gate). */
typedef struct mtlq_swiglu_args {
    uint32_t dim;
    uint32_t rows;
} mtlq_swiglu_args;

/* Query and key norm, rotary positions, and the append to the K/V cache. With num_heads 0 only k and v are
 * stored: qg, q_norm and q are not touched.
 * Bindings: header, row_sequence i32[R] (index among the S sequences), positions i32[R],
 *   sequence_slots i32[S], qg f32[R, H, 2, D] (per head D query lanes then D gate lanes; without gates
 *   [R, H, D]), k f32[R, KV, D], v f32[R, KV, D], q_norm f32[D], k_norm f32[D],
 *   rope f32[max_context, rotary_dim] (rotary_dim/2 cosines then as many sines),
 *   k_cache, v_cache, q f32[R, H, D] (out).
 * Cache, f16, tile (slot * max_context + position) / block_tokens:
 *   K tile [KV, D, block_tokens] (positions innermost), V tile [KV, block_tokens, D]. */
typedef struct mtlq_rotary_args {
    uint32_t num_heads;    /* H */
    uint32_t num_kv_heads; /* KV */
    uint32_t head_dim;     /* D */
    uint32_t rotary_dim;   /* lanes j and j + rotary_dim/2 turn together */
    uint32_t max_context;
    uint32_t block_tokens;
    float eps;
    uint32_t gated; /* 1: query and gate lanes; 0: query lanes only */
} mtlq_rotary_args;

/* Attention over the cache, times sigmoid(gate) where gated. o f32[R, H * D]. The key at position p, below
 * kv_valid + the sequence's rows, is visible to the query at position t if
 *   (not causal or p <= t) and (no window or |t - p| < window).
 * Bindings: header, query_start_loc i32[S+1], sequence_slots i32[S], batched_kv_valid i32[S]
 *   (positions cached before this step; row i of a sequence is at kv_valid + i), q f32[R, H, D],
 *   k_cache, v_cache, qg f32[R, H, 2, D] (not touched without gates), o, workspace (num_workspace_bytes). */
typedef struct mtlq_attention_args {
    uint32_t num_heads;
    uint32_t num_kv_heads;
    uint32_t head_dim;
    uint32_t max_context;
    uint32_t block_tokens;
    float scale;
    uint64_t num_workspace_bytes;
    uint32_t gated;
    uint32_t causal;
    uint32_t window; /* in positions; 0: none */
    uint32_t reserved;
} mtlq_attention_args;

/* Speculation: what conv and delta keep of the rows of a draft until it is known how many were accepted.
 * The tape of a slot, f32 [bank][slot].. [row], has for each row of its last verifying step
 *   k f32[hk, dk], d f32[hv, dv], exp(g) f32[hv]   of the delta rule: S = exp(g) S + k d^T
 *   u f32[C]                                       of the convolution: the raw row
 * state i32[S]: UNBOUND, or the slot that records, which is the sequence's own. pending i32[S]: rows of the
 * tape in bank[s] that were accepted, but are not yet in the state of bank[s]. A step of a sequence
 *   1. takes what bank[s] holds (nothing at kv_valid == 0) and replays its pending rows;
 *   2. if UNBOUND, runs its rows from there and writes the result to the other bank;
 *      if bound, writes what it has to the other bank first and runs its rows, which go to the other
 *      bank's tape: as many rows as the tape has at most. The caller sets pending to those it accepts.
 * So the caller flips banks after every step, and a sequence without rows only replays. */

/* Causal depthwise convolution over 4 tokens, SiLU, then per head of head_dim channels q and k to unit
 * length (eps on the sum of squares), q also times q_scale. Channels: q heads, k heads, v heads.
 * The last 3 raw rows of each sequence are read from bank bank[s] and written to the other bank;
 * at kv_valid == 0 the tail is zero and not read. Replaying a raw row puts it at the end of the tail.
 * Bindings: header, query_start_loc, sequence_slots, batched_kv_valid, bank i32[S],
 *   u f32[R, C], w f32[4, C] (tap 3 = current token), tails f32 [bank][slot].. [3, C], y f32[R, C],
 *   state, pending, tape (at u of a row). */
typedef struct mtlq_conv_args {
    uint32_t num_channels;  /* C */
    uint32_t num_key_heads; /* q heads = k heads */
    uint32_t head_dim;      /* of q and k */
    float eps;
    float q_scale;
    uint32_t reserved;
    uint64_t bank_stride; /* in floats, between banks of one slot */
    uint64_t slot_stride; /* in floats */
    uint64_t tape_bank_stride;
    uint64_t tape_slot_stride;
    uint64_t tape_row_stride;
} mtlq_conv_args;

/* The gated delta rule, token by token (delta), or in chunks of 32 tokens (delta_chunk).
 * g = ssm_a * softplus(a + dt_bias), beta = sigmoid(b); value head j reads q/k head j % num_key_heads;
 *   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q.
 * State f32 [dk, dv] per value head, read from bank bank[s], written to the other; zero at kv_valid == 0.
 * Bindings: header, query_start_loc, sequence_slots, batched_kv_valid, bank,
 *   y f32[R, C] (q, k, v of conv), a f32[R, hv], b f32[R, hv], ssm_a f32[hv], dt_bias f32[hv],
 *   states f32 [bank][slot].. [hv, dk, dv], o f32[R, hv * dv], state, pending, tape (at k of a row).
 * With MTLQ_STATES the tape has, for each row, the state after it, f32 [hv, dk, dv]: replaying is reading
 * the last pending one, and step 2 writes no other state, so pending may not be 0 after a bound step.
 * delta_chunk has no bound sequences and only the tape of MTLQ_TAPE. */
#define MTLQ_TAPE   0 /* layouts */
#define MTLQ_STATES 1

typedef struct mtlq_delta_args {
    uint32_t num_key_heads;
    uint32_t num_value_heads; /* hv */
    uint32_t key_dim;         /* dk */
    uint32_t value_dim;       /* dv */
    uint64_t bank_stride;     /* in floats */
    uint64_t slot_stride;     /* in floats */
    uint64_t tape_bank_stride;
    uint64_t tape_slot_stride;
    uint64_t tape_row_stride;
    uint32_t layout;
    uint32_t reserved;
} mtlq_delta_args;

/* y[rows, heads, dim] = rms(o) * w[dim] * silu(z). Bindings: header, o, z, w f32[dim], y. */
typedef struct mtlq_gated_norm_args {
    uint32_t num_heads;
    uint32_t dim;
    uint32_t rows;
    float eps;
} mtlq_gated_norm_args;

/* ids i32[rows] = index of the largest of logits[rows, :num_valid], the lowest index among equals; NaN never wins.
 * Bindings: header, logits f32[rows, stride], ids. */
typedef struct mtlq_argmax_args {
    uint32_t num_valid;
    uint32_t stride;
    uint32_t rows;
} mtlq_argmax_args;

/* Below: what only drafters need. */

/* features[feature_row + rows, column .. column + dim] = x[rows, dim]: the hidden state after one layer as a
 * part of the features, which are kept until the drafter wants them; feature_row is a header word.
 * Bindings: header, x, features f32[feature_row + rows at least, stride]. */
typedef struct mtlq_tap_args {
    uint32_t dim;
    uint32_t rows;
    uint32_t stride; /* of features: taps * dim */
    uint32_t column;
} mtlq_tap_args;

/* input_ids[target_rows[rows]] = ids[rows]: the drafted tokens of one batch become rows of another.
 * Bindings: header (of the batch of the ids), ids i32[rows], target_rows i32[rows], input_ids i32 (of the
 * other batch). */
typedef struct mtlq_scatter_ids_args {
    uint32_t rows;
} mtlq_scatter_ids_args;

/* Dynamic convolution over a row and the row before, of groups of channels:
 *   y[t] (+)= (base[side, 0] + dyn[t, side, 0]) x[t] + (base[side, 1] + dyn[t, side, 1]) x[t - 1]
 * with x[-1] = 0 before the first row of a sequence and dyn's value of a group for all its channels.
 * Bindings: header, row_sequence i32[R], x f32[R, dim], dyn f32[R, 2, 2, dim / group],
 *   base f32[2, 2, dim] (side, tap), y. y may not be x. */
typedef struct mtlq_block_conv_args {
    uint32_t dim;
    uint32_t group;      /* a multiple of 16 */
    uint32_t side;       /* 0: before the sublayer, 1: after it */
    uint32_t accumulate; /* 1: y += */
} mtlq_block_conv_args;

/* Chooses the tokens of drafted blocks, left to right: of the 16 largest logits of a row the one with the
 * largest  logits[b] + sum(predecessor[p] * h * successor[b]),  the lowest id among equals; NaN counts as
 * -infinity. p is the token before: that chosen for the row before or, if the row before has no logits (it
 * is the anchor of its block; there always is one), its input id. Suffix: type of the codebooks, f32, f16
 * or bf16.
 * Bindings: header, input_ids i32[R], logit_rows i32[L] (ascending), logits f32[L, stride], h f32[L, rank],
 *   predecessor [V, rank], successor [V, rank] (V >= num_valid), ids i32[L],
 *   workspace i32[L, ceil(num_valid / 8192), 16]. */
typedef struct mtlq_select_path_args {
    uint32_t num_valid;
    uint32_t stride;
    uint32_t rank; /* a multiple of 16 */
} mtlq_select_path_args;

#endif
