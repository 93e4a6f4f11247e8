/* kernel_bits.c: the bits of every kernel's results on fixed pseudo-random inputs, through mtlq.h.
 * Usage: kernel_bits ISA... Prints a line "kernel case hash" per case, from the first instruction set, and
 * fails if another gives different bits. Lines of two machines are compared by kernel_bits.sh.
 * A new kernel is a row of `cases`. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/args.h"
#include "../../shim/mtlq.h"

#define MAX_BINDINGS 14
#define SEQUENCES    3u
#define ROWS         40u /* of the step: 1, 34 and 5 of three sequences */
#define SLOTS        4u
#define BLOCK        128u
#define CONTEXT      (3 * BLOCK)
#define RECORD_BYTES 384u /* of 256 activations */
#define FEATURE_ROW  2u

/* Further words of the batch header that count rows. */
enum { SIX_ROWS = MTLQ_FEATURE_ROW + 1, THIRTEEN_ROWS };

/* SMALL: heads shorter than 1, so that the delta rule contracts. UNEVEN: every 32 values of a size of their own.
 * WEIGHTS: count bytes of blocks. RECORDS: rows of count UNEVEN values, by quantize. PRIVATE: depends on who
 * did what. */
enum { I32, F32, SMALL, NEGATIVE, UNEVEN, F16, BF16, WEIGHTS, RECORDS, OUT, PRIVATE };

typedef struct binding {
    int kind;
    uint32_t count;
    const int32_t *words; /* of I32; what matrix_cases.h says of WEIGHTS and RECORDS */
} binding;

typedef struct kernel_case {
    const char *kernel, *label;
    const void *args;
    uint32_t args_bytes;
    binding bindings[MAX_BINDINGS]; /* after the header, to the first of count 0 */
} kernel_case;

static const int32_t starts[] = {0, 1, 35, 40}, slots[] = {2, 0, 3}, kv_valid[] = {0, 100, 127},
                     banks[] = {1, 0, 1}, states[] = {MTLQ_UNBOUND, MTLQ_UNBOUND, 3}, pending[] = {0, 2, 5},
                     unbound[] = {MTLQ_UNBOUND, MTLQ_UNBOUND, MTLQ_UNBOUND};
static int32_t row_sequence[ROWS], positions[ROWS];
static const int32_t indices[] = {3, 0, 39, 3}, draft_rows[] = {36, 37, 38, 39};

#define WORDS(array)   {I32, sizeof(array) / sizeof *(array), array}
#define SEQUENCE_WORDS WORDS(starts), WORDS(slots), WORDS(kv_valid)
#define ARGS(...)      &(__VA_ARGS__), sizeof(__VA_ARGS__)
#define TILES          (SLOTS * CONTEXT / BLOCK)
#define TAPE_ROWS      5u
#define TAPE_STRIDES(row) SLOTS * TAPE_ROWS * (row), TAPE_ROWS * (row), row
#define TAPE(STATE, row)  WORDS(STATE), WORDS(pending), {SMALL, 2 * SLOTS * TAPE_ROWS * (row), 0}

#define ROTARY(H, KV, D)                                                                                     \
    {                                                                                                        \
        "rotary", #H "x" #KV "x" #D, ARGS((mtlq_rotary_args){H, KV, D, D / 4, CONTEXT, BLOCK, 1e-6f, 1}),    \
        {                                                                                                    \
            WORDS(row_sequence), WORDS(positions), WORDS(slots), {F32, ROWS * H * 2 * D, 0},                 \
                {F32, ROWS * KV * D, 0}, {F32, ROWS * KV * D, 0}, {F32, D, 0}, {F32, D, 0},                  \
                {F32, CONTEXT * D / 4, 0}, {OUT, TILES * BLOCK * KV * D / 2, 0},                             \
                {OUT, TILES * BLOCK * KV * D / 2, 0}, {OUT, ROWS * H * D, 0}                                 \
        }                                                                                                    \
    }
#define ATTENTION(H, KV, D, WORKSPACE, GATED, CAUSAL, WINDOW)                                                \
    {                                                                                                        \
        "attention", #H "x" #KV "x" #D "/" #WORKSPACE "/" #GATED #CAUSAL #WINDOW,                            \
            ARGS((mtlq_attention_args){H, KV, D, CONTEXT, BLOCK, 0.0625f, WORKSPACE, GATED, CAUSAL, WINDOW, 0}),\
        {                                                                                                    \
            SEQUENCE_WORDS, {F32, ROWS * H * D, 0}, {F16, TILES * BLOCK * KV * D, 0},                        \
                {F16, TILES * BLOCK * KV * D, 0}, {F32, ROWS * H * 2 * D, 0}, {OUT, ROWS * H * D, 0},        \
                {PRIVATE, 1 + WORKSPACE / 4, 0}                                                              \
        }                                                                                                    \
    }
#define CONV(HK, HV, D)                                                                                      \
    {                                                                                                        \
        "conv", #HK "x" #HV "x" #D,                                                                          \
            ARGS((mtlq_conv_args){(2 * HK + HV) * D, HK, D, 1e-6f, 0.0883883f, 0,                            \
                                  SLOTS * 3 * (2 * HK + HV) * D, 3 * (2 * HK + HV) * D,                      \
                                  TAPE_STRIDES((2 * HK + HV) * D)}),                                         \
        {                                                                                                    \
            SEQUENCE_WORDS, WORDS(banks), {F32, ROWS * (2 * HK + HV) * D, 0},                                \
                {F32, 4 * (2 * HK + HV) * D, 0}, {F32, 2 * SLOTS * 3 * (2 * HK + HV) * D, 0},                \
                {OUT, ROWS * (2 * HK + HV) * D, 0}, TAPE(states, (2 * HK + HV) * D)                          \
        }                                                                                                    \
    }
#define DELTA(KERNEL, STATE, HK, HV, DK, DV)                                                                 \
    {                                                                                                        \
        KERNEL, #HK "x" #HV "x" #DK "x" #DV,                                                                 \
            ARGS((mtlq_delta_args){HK, HV, DK, DV, SLOTS * HV * DK * DV, HV * DK * DV,                       \
                                   TAPE_STRIDES(HK * DK + HV * DV + HV), MTLQ_TAPE, 0}),                     \
        {                                                                                                    \
            SEQUENCE_WORDS, WORDS(banks), {SMALL, ROWS * (2 * HK * DK + HV * DV), 0}, {F32, ROWS * HV, 0},   \
                {F32, ROWS * HV, 0}, {NEGATIVE, HV, 0}, {F32, HV, 0}, {F32, 2 * SLOTS * HV * DK * DV, 0},    \
                {OUT, ROWS * HV * DV, 0}, TAPE(STATE, HK * DK + HV * DV + HV)                                \
        }                                                                                                    \
    }

#include "matrix_cases.h"

static const kernel_case cases[] = {
    {"rmsnorm",
     "1000",
     ARGS((mtlq_rmsnorm_args){1000, MTLQ_ROWS, 1e-6f}),
     {{F32, ROWS * 1000, 0}, {F32, 1000, 0}, {OUT, ROWS * 1000, 0}}},
    {"gather",
     "77",
     ARGS((mtlq_gather_args){77, MTLQ_LOGIT_ROWS}),
     {WORDS(indices), {F32, ROWS * 77, 0}, {OUT, 4 * 77, 0}}},
    {"swiglu",
     "1001",
     ARGS((mtlq_swiglu_args){1001, MTLQ_ROWS}),
     {{F32, ROWS * 1001, 0}, {F32, ROWS * 1001, 0}, {OUT, ROWS * 1001, 0}}},
    {"gated_norm",
     "5x48",
     ARGS((mtlq_gated_norm_args){5, 48, MTLQ_ROWS, 1e-6f}),
     {{F32, ROWS * 240, 0}, {F32, ROWS * 240, 0}, {F32, 48, 0}, {OUT, ROWS * 240, 0}}},
    {"argmax",
     "20000",
     ARGS((mtlq_argmax_args){20000, 20010, MTLQ_LOGIT_ROWS}),
     {{F32, 4 * 20010, 0}, {OUT, 4, 0}}},
    {"tap",
     "77",
     ARGS((mtlq_tap_args){77, MTLQ_ROWS, 231, 77}),
     {{F32, ROWS * 77, 0}, {OUT, (FEATURE_ROW + ROWS) * 231, 0}}},
    {"scatter_ids",
     "4",
     ARGS((mtlq_scatter_ids_args){MTLQ_LOGIT_ROWS}),
     {WORDS(indices), WORDS(draft_rows), {OUT, ROWS, 0}}},
    {"block_conv",
     "192/16",
     ARGS((mtlq_block_conv_args){192, 16, 1, 1}),
     {WORDS(row_sequence), {F32, ROWS * 192, 0}, {F32, ROWS * 48, 0}, {F32, 4 * 192, 0}, {OUT, ROWS * 192, 0}}},
    {"select_path_f16",
     "20000x32",
     ARGS((mtlq_select_path_args){20000, 20010, 32}),
     {WORDS(row_sequence), WORDS(draft_rows), {F32, 4 * 20010, 0}, {F32, 4 * 32, 0}, {F16, 20000 * 32, 0},
      {F16, 20000 * 32, 0}, {OUT, 4, 0}, {OUT, 4 * 3 * 16, 0}}},
    ROTARY(8, 2, 256),
    ROTARY(3, 1, 64),
    ATTENTION(8, 2, 256, 0, 1, 1, 0),
    ATTENTION(8, 2, 256, 1048576, 1, 1, 0),
    ATTENTION(6, 1, 64, 0, 1, 1, 0),
    ATTENTION(8, 2, 128, 1048576, 0, 0, 100),
    ATTENTION(8, 2, 128, 0, 0, 1, 30),
    CONV(2, 3, 128),
    CONV(1, 1, 48),
    DELTA("delta", states, 1, 2, 128, 128),
    DELTA("delta", states, 2, 2, 32, 64),
    DELTA("delta_chunk", unbound, 1, 2, 128, 128),
    MATRIX_CASES,
};

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mtlq_last_error());
    exit(1);
}

static uint64_t random_state;

static uint32_t random_word(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* Random blocks. Their f16 fields stay below 2, exponents below 2^0. */
static void fill_blocks(const int32_t *layout, uint8_t *bytes, uint32_t num_bytes)
{
    for (uint32_t i = 0; i < num_bytes; i++) {
        bytes[i] = (uint8_t)(random_word() >> 24);
    }
    for (uint8_t *block = bytes; block < bytes + num_bytes; block += layout[0]) {
        for (int32_t i = 0; i < layout[1]; i++) {
            block[layout[2 + i] + 1] &= 0xbf;
        }
        block[0] &= layout[1] ? 0xff : 0x7f;
    }
}

/* f32 in (-2, 2) or as the kind says; f16 of either sign from 2^-7 to 2. */
static void fill(const binding *b, void *data)
{
    float *f32 = data;
    uint16_t *u16 = data;
    uint32_t bits;
    if (b->kind == WEIGHTS) {
        fill_blocks(b->words, data, b->count);
        return;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        uint32_t word = random_word();
        float value = (float)((int32_t)(word >> 8) - 0x800000) * 0x1p-22f;
        switch (b->kind) {
        case F32:
            f32[i] = value;
            break;
        case SMALL:
            f32[i] = value * 0x1p-4f;
            break;
        case NEGATIVE:
            f32[i] = value * 0.5f - 1.0f;
            break;
        case UNEVEN:
            f32[i] = ldexpf(value, -(int)(i / 32 % 5));
            break;
        case F16:
            u16[i] = (uint16_t)((word >> 16 & 0x8000u) | (0x2000u + (word >> 8 & 0x1fffu)));
            break;
        case BF16:
            memcpy(&bits, &value, sizeof bits);
            u16[i] = (uint16_t)(bits >> 16);
            break;
        }
    }
}

static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t num_bytes)
{
    for (uint64_t i = 0; i < num_bytes; i++) {
        hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    }
    return hash;
}

static const mtlq_batch_header batch = {ROWS, SEQUENCES, 4, FEATURE_ROW, {6, 13}};

static uint64_t record_bytes(const binding *b)
{
    return (uint64_t)RECORD_BYTES * ((b->count + 255) / 256) * ((const uint32_t *)&batch)[b->words[0]];
}

static uint64_t binding_bytes(const binding *b)
{
    switch (b->kind) {
    case F16:
    case BF16:
        return b->count * 2ull;
    case WEIGHTS:
        return b->count;
    case RECORDS:
        return record_bytes(b);
    default:
        return b->count * 4ull;
    }
}

static void *create_buffer(mtlq_device *device, uint64_t num_bytes, mtlq_buffer **buffer)
{
    void *contents;
    if (mtlq_buffer_create(device, num_bytes, buffer) || mtlq_buffer_contents(*buffer, &contents)) {
        fail("buffer");
    }
    return contents;
}

static void launch(mtlq_device *device, mtlq_library *library, const char *kernel, const void *args,
                   uint32_t args_bytes, mtlq_buffer *const *buffers, uint32_t count)
{
    mtlq_binding bindings[MAX_BINDINGS + 1] = {{0}};
    mtlq_pipeline *pipeline;
    mtlq_encoder *encoder;
    uint64_t ticket;
    for (uint32_t i = 0; i < count; i++) {
        bindings[i].buffer = mtlq_buffer_id(buffers[i]);
    }
    if (mtlq_pipeline_create(library, kernel, NULL, 0, &pipeline) || mtlq_encoder_create(device, &encoder)) {
        fail(kernel);
    }
    mtlq_dispatch dispatch = {.pipeline = mtlq_pipeline_id(pipeline),
                              .grid_buffer = MTLQ_NO_ID,
                              .num_bindings = count,
                              .args_bytes = args_bytes};
    if (mtlq_encoder_dispatch(encoder, &dispatch, bindings, args) || mtlq_encoder_commit(encoder, &ticket) ||
        mtlq_wait(device, ticket, MTLQ_FOREVER)) {
        fail(kernel);
    }
    mtlq_encoder_free(encoder);
    mtlq_pipeline_free(pipeline);
}

/* Random rows through quantize. */
static void fill_records(mtlq_device *device, mtlq_library *library, const binding *b, mtlq_buffer *header,
                         mtlq_buffer *records)
{
    uint32_t row_word = (uint32_t)b->words[0];
    binding rows = {UNEVEN, b->count * ((const uint32_t *)&batch)[row_word], NULL};
    mtlq_buffer *x;
    fill(&rows, create_buffer(device, binding_bytes(&rows), &x));
    mtlq_quantize_args args = {b->count, row_word};
    launch(device, library, "quantize", &args, sizeof args, (mtlq_buffer *[]){header, x, records}, 3);
    mtlq_buffer_free(x);
}

/* Runs the case and returns a hash of everything it read and wrote. */
static uint64_t run_case(mtlq_device *device, mtlq_library *library, const kernel_case *c)
{
    mtlq_buffer *buffers[MAX_BINDINGS + 1];
    void *contents[MAX_BINDINGS + 1];
    uint64_t hash = 14695981039346656037u;
    uint32_t count = 1;

    random_state = 2026;
    *(mtlq_batch_header *)create_buffer(device, sizeof batch, &buffers[0]) = batch;
    for (const binding *b = c->bindings; b < c->bindings + MAX_BINDINGS && b->count; b++, count++) {
        contents[count] = create_buffer(device, binding_bytes(b), &buffers[count]);
        if (b->kind == I32) {
            memcpy(contents[count], b->words, binding_bytes(b));
        } else if (b->kind == RECORDS) {
            fill_records(device, library, b, buffers[0], buffers[count]);
        } else {
            fill(b, contents[count]);
        }
    }
    launch(device, library, c->kernel, c->args, c->args_bytes, buffers, count);
    for (uint32_t i = 1; i < count; i++) {
        const binding *b = &c->bindings[i - 1];
        hash = b->kind == PRIVATE ? hash : hash_bytes(hash, contents[i], binding_bytes(b));
    }
    for (uint32_t i = 0; i < count; i++) {
        mtlq_buffer_free(buffers[i]);
    }
    return hash;
}

int main(int argc, char **argv)
{
    static uint64_t hashes[sizeof cases / sizeof *cases];
    int num_different = 0;
    for (uint32_t s = 0, row = 0; s < SEQUENCES; s++) {
        for (int32_t i = 0; row < (uint32_t)starts[s + 1]; row++, i++) {
            row_sequence[row] = (int32_t)s;
            positions[row] = kv_valid[s] + i;
        }
    }
    for (int i = 1; i < argc; i++) {
        mtlq_device_desc desc = {.struct_size = sizeof desc, .num_threads = (uint32_t)i, .isa = argv[i]};
        mtlq_device *device;
        mtlq_library *library;
        if (mtlq_device_open("cpu", &desc, &device) || mtlq_library_create(device, NULL, 0, &library)) {
            fail(argv[i]);
        }
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            uint64_t hash = run_case(device, library, &cases[c]);
            if (i == 1) {
                hashes[c] = hash;
                printf("%s %s %016" PRIx64 "\n", cases[c].kernel, cases[c].label, hash);
            } else if (hash != hashes[c]) {
                num_different++;
                fprintf(stderr, "%s %s: %s differs from %s\n", cases[c].kernel, cases[c].label, argv[i],
                        argv[1]);
            }
        }
        mtlq_library_free(library);
        mtlq_device_close(device);
    }
    return num_different != 0;
}
