/* sequences.h: where the rows, slots and banks of a sequence lie. */
#ifndef MTLQ_SEQUENCES_H
#define MTLQ_SEQUENCES_H

#include "common.h"

/* The sequence that a row belongs to; query_start_loc[num_sequences] > row. */
inline uint sequence_of_row(device const int *query_start_loc, uint row)
{
    uint sequence = 0;
    while (uint(query_start_loc[sequence + 1]) <= row)
        ++sequence;
    return sequence;
}

/* Offset in floats of what a slot keeps in a bank. */
inline ulong bank_offset(uint bank, uint slot, ulong bank_stride, ulong slot_stride)
{
    return bank * bank_stride + slot * slot_stride;
}

#endif
