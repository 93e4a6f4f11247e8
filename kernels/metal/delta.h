/* delta.h: shared by the recurrent and the chunked form of the delta rule. All bind header,
 * query_start_loc, sequence_slots, batched_kv_valid, bank, y, a, b, ssm_a, dt_bias, states, o,
 * state, pending, tape. */
#ifndef MTLQ_DELTA_H
#define MTLQ_DELTA_H

#include "sequences.h"

#define KEY_DIM 128

/* Sequences of more rows are chunked, unless they verify a draft: chunks record nothing. */
constant uint MAX_ROWS [[function_constant(0)]];

inline bool is_chunked(uint num_rows, int state)
{
    return num_rows > MAX_ROWS && state == MTLQ_UNBOUND;
}

/* Offsets in floats, within a row of the tape, of what one value head keeps there. */
struct tape_row {
    uint k, d, decay;
};

inline tape_row tape_row_of(constant mtlq_delta_args &args, uint head)
{
    tape_row row;
    row.k = head % args.num_key_heads * KEY_DIM;
    row.d = args.num_key_heads * KEY_DIM + head * args.value_dim;
    row.decay = args.num_key_heads * KEY_DIM + args.num_value_heads * args.value_dim + head;
    return row;
}

#endif
