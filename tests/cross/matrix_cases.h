/* matrix_cases.h: the cases of kernel_bits.c that have a weight matrix, for every weight type. */
#ifndef MTLQ_MATRIX_CASES_H
#define MTLQ_MATRIX_CASES_H

/* Bytes of a block, number of its f16 fields and where they are; none: its first byte is an exponent. */
static const int32_t q8_0[] = {34, 1, 0}, q4_0[] = {18, 1, 0}, q4_1[] = {20, 2, 0, 2},
                     q5_0[] = {22, 1, 0}, q5_1[] = {24, 2, 0, 2}, iq4_nl[] = {18, 1, 0}, mxfp4[] = {17, 0},
                     q2_k[] = {84, 2, 80, 82}, q3_k[] = {110, 1, 108}, q4_k[] = {144, 2, 0, 2},
                     q5_k[] = {176, 2, 0, 2}, q6_k[] = {210, 1, 208}, iq4_xs[] = {136, 1, 0};

/* The header word that has the number of rows, as RECORDS wants it. */
static const int32_t three_rows[] = {MTLQ_SEQUENCES}, six_rows[] = {SIX_ROWS},
                     thirteen_rows[] = {THIRTEEN_ROWS};

#define LINEAR(TYPE, LABEL, IN, OUT, ROW_BYTES, ROW_WORD, ACCUMULATE, NUM_RESULTS, ...)                      \
    {                                                                                                        \
        "linear_" #TYPE, LABEL, ARGS((mtlq_linear_args){IN, OUT, ROW_WORD, ACCUMULATE, ROW_BYTES}),          \
        {                                                                                                    \
            __VA_ARGS__, {F32, NUM_RESULTS, 0}                                                               \
        }                                                                                                    \
    }
#define EMBED(TYPE, DIM, ROW_BYTES, ...)                                                                     \
    {                                                                                                        \
        "embed_" #TYPE, #DIM, ARGS((mtlq_embed_args){DIM, SEQUENCES, ROW_BYTES}),                            \
        {                                                                                                    \
            WORDS(row_sequence), __VA_ARGS__, {OUT, ROWS * DIM, 0}                                           \
        }                                                                                                    \
    }
/* Thirteen rows of x leave one after whole tiles, six leave two; 37 and 19 rows of W are no whole groups. */
#define INTEGER_TYPE(TYPE, DIM, ROW_BYTES)                                                                   \
    EMBED(TYPE, DIM, ROW_BYTES, {WEIGHTS, SEQUENCES * ROW_BYTES, TYPE}),                                     \
        LINEAR(TYPE, "13x37", DIM, 37, ROW_BYTES, THIRTEEN_ROWS, 0, 13 * 37,                                 \
               {WEIGHTS, 37 * ROW_BYTES, TYPE}, {RECORDS, DIM, thirteen_rows}),                              \
        LINEAR(TYPE, "6x19", DIM, 19, ROW_BYTES, SIX_ROWS, 0, 6 * 19, {WEIGHTS, 19 * ROW_BYTES, TYPE},       \
               {RECORDS, DIM, six_rows}),                                                                    \
        LINEAR(TYPE, "3x16+", DIM, 16, ROW_BYTES, MTLQ_SEQUENCES, 1, 3 * 16,                                 \
               {WEIGHTS, 16 * ROW_BYTES, TYPE}, {RECORDS, DIM, three_rows})
#define FLOAT_TYPE(TYPE, KIND, VALUE_BYTES)                                                                  \
    EMBED(TYPE, 555, 555 * VALUE_BYTES, {KIND, SEQUENCES * 555, 0}),                                         \
        LINEAR(TYPE, "13x37", 555, 37, 555 * VALUE_BYTES, THIRTEEN_ROWS, 0, 13 * 37, {KIND, 37 * 555, 0},    \
               {F32, 13 * 555, 0}),                                                                          \
        LINEAR(TYPE, "3x16+", 555, 16, 555 * VALUE_BYTES, MTLQ_SEQUENCES, 1, 3 * 16, {KIND, 16 * 555, 0},    \
               {F32, 3 * 555, 0})

/* clang-format off */
#define MATRIX_CASES                                                                                         \
    {"quantize", "549", ARGS((mtlq_quantize_args){549, MTLQ_ROWS}),                                          \
     {{UNEVEN, ROWS * 549, 0}, {OUT, ROWS * 3 * RECORD_BYTES / 4, 0}}},                                      \
    FLOAT_TYPE(f32, F32, 4), FLOAT_TYPE(f16, F16, 2), FLOAT_TYPE(bf16, BF16, 2),                             \
    INTEGER_TYPE(q8_0, 544, 17 * 34), INTEGER_TYPE(q4_0, 544, 17 * 18), INTEGER_TYPE(q4_1, 544, 17 * 20),    \
    INTEGER_TYPE(q5_0, 544, 17 * 22), INTEGER_TYPE(q5_1, 544, 17 * 24),                                      \
    INTEGER_TYPE(iq4_nl, 544, 17 * 18), INTEGER_TYPE(mxfp4, 544, 17 * 17),                                   \
    INTEGER_TYPE(q2_k, 768, 3 * 84), INTEGER_TYPE(q3_k, 768, 3 * 110), INTEGER_TYPE(q4_k, 768, 3 * 144),     \
    INTEGER_TYPE(q5_k, 768, 3 * 176), INTEGER_TYPE(q6_k, 768, 3 * 210), INTEGER_TYPE(iq4_xs, 768, 3 * 136)

#endif
