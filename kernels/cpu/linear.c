/* linear.c: the loops of the integer matrix products around the tile of one weight type. */
#include <stdbool.h>

#include "linear.h"

/* Rows of x that share one unpacking of W; their sums stay in L1 beside the tile. */
#define MAX_CHUNK_ROWS 128u
/* From here on a worker takes rows of x of its own: it reads all of W, but only its activations. */
#define MIN_CHUNK_ROWS 64u
#define READ_AHEAD_BYTES 16384u

typedef struct product {
    const uint8_t *weights;
    const xblock *x; /* [num_blocks][num_rows] */
    float *y;
    const mtlq_linear_args *args;
    const linear_type *type;
    uint64_t num_rows;
    uint64_t num_blocks;
} product;

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Fewer than sixteen rows, or the short last block of a row: a copy with zeros for what is missing. */
static void copy_edge(const product *p, uint64_t first_row, uint64_t b, uint8_t *out)
{
    uint64_t num_rows = min_u64(LINEAR_ROWS, p->args->out_dim - first_row);
    uint64_t begin = b * p->type->quant.block_bytes;
    uint64_t num_bytes = min_u64(p->type->quant.block_bytes, p->args->row_bytes - begin);
    memset(out, 0, LINEAR_ROWS * p->type->quant.block_bytes);
    for (uint64_t r = 0; r < num_rows; r++) {
        memcpy(out + r * p->type->quant.block_bytes, p->weights + (first_row + r) * p->args->row_bytes + begin, num_bytes);
    }
}

static void store_rows(const product *p, uint64_t first_row, uint64_t x_begin, const lanes *sums, uint64_t count)
{
    uint64_t n = min_u64(LINEAR_ROWS, p->args->out_dim - first_row);
    for (uint64_t t = 0; t < count; t++) {
        float *y = p->y + (x_begin + t) * p->args->out_dim + first_row;
        lanes result = sums[t];
        if (n < LINEAR_ROWS) {
            result = p->args->accumulate ? lanes_add(lanes_load_n(y, n), result) : result;
            lanes_store_n(y, result, n);
        } else {
            result = p->args->accumulate ? lanes_add(lanes_load(y), result) : result;
            lanes_store(y, result);
        }
    }
}

/* Sixteen rows of W times rows [x_begin, x_end) of x, at most MAX_CHUNK_ROWS. */
static void multiply_group(const product *p, uint64_t group, uint64_t x_begin, uint64_t x_end)
{
    uint64_t count = x_end - x_begin, stride = p->args->row_bytes, first_row = group * LINEAR_ROWS;
    uint64_t num_whole = first_row + LINEAR_ROWS <= p->args->out_dim ? stride / p->type->quant.block_bytes : 0;
    const uint8_t *rows = p->weights + first_row * stride;
    uint64_t group_bytes = LINEAR_ROWS * stride;
    /* Only an address to prefetch, often past the end of W: never dereferenced. */
    uintptr_t ahead = (uintptr_t)rows + (group_bytes > READ_AHEAD_BYTES ? group_bytes : READ_AHEAD_BYTES);
    lanes sums[MAX_CHUNK_ROWS];
    tile w;
    for (uint64_t t = 0; t < count; t++) {
        sums[t] = lanes_zero();
    }
    for (uint64_t b = 0; b < p->num_blocks; b++) {
        const xblock *x = p->x + b * p->num_rows + x_begin;
        if (b < num_whole) {
            p->type->unpack(rows + b * p->type->quant.block_bytes, stride, &w);
        } else {
            uint8_t edge[LINEAR_ROWS * MAX_BLOCK_BYTES];
            copy_edge(p, first_row, b, edge);
            p->type->unpack(edge, p->type->quant.block_bytes, &w);
        }
        for (uint64_t t = 0; t < count; t += LINEAR_TILE) {
            /* The first rows read W ahead, the others the activations of the rows after them. */
            const uint8_t *next = t == 0 ? (const uint8_t *)ahead : (const uint8_t *)(x + t + LINEAR_TILE);
            p->type->multiply(&w, x + t, sums + t, (unsigned)min_u64(LINEAR_TILE, count - t), next);
        }
        ahead += LINEAR_ROWS * p->type->quant.block_bytes;
    }
    store_rows(p, first_row, x_begin, sums, count);
}

#ifdef MTLQ_LINEAR_FEW_H
_Static_assert(FEW_ROWS * FEW_BLOCKS * sizeof(few_x) <= MTLQ_SCRATCH_BYTES, "few_x of a call lie in the scratch");

/* Sixteen rows of W times row t of x from their sums, the float operations of multiply_super. */
static lanes add_few_sums(const product *p, const few_sums *sums, unsigned t)
{
    const quant_type *quant = &p->type->quant;
    lanes y = lanes_zero();
    for (uint64_t b = 0; b < p->num_blocks; b++) {
        words pairs = words_load(sums->pairs[t][b]), sum = words_load(sums->codes[t][b]);
        if (quant->zero_shift) {
            sum = words_sub(sum, words_shl(pairs, quant->zero_shift));
        }
        lanes v = lanes_mul(lanes_load_f16(sums->steps[b]), words_to_lanes(sum));
        if (quant->has_offset) {
            v = lanes_fma(lanes_neg(lanes_load_f16(sums->offsets[b])), words_to_lanes(pairs), v);
        }
        y = lanes_fma(v, lanes_splat(p->x[b * p->num_rows + t].step), y);
    }
    return y;
}

/* Sixteen rows of W times all rows of x, at most FEW_ROWS. */
static void multiply_few(const product *p, const few_x *few, uint64_t group)
{
    uint64_t stride = p->args->row_bytes, first_row = group * LINEAR_ROWS;
    uint64_t num_rows = min_u64(LINEAR_ROWS, p->args->out_dim - first_row);
    unsigned num_x = (unsigned)p->num_rows;
    lanes y[FEW_ROWS];
    few_sums sums;
    if (num_rows < LINEAR_ROWS) {
        memset(&sums, 0, sizeof sums);
    }
    for (uint64_t r = 0; r < num_rows; r++) {
        const uint8_t *row = p->weights + (first_row + r) * stride;
        p->type->few.row(row, p->x, few, num_x, (unsigned)p->num_blocks, (unsigned)r, &sums);
    }
    for (unsigned t = 0; t < num_x; t++) {
        y[t] = add_few_sums(p, &sums, t);
    }
    store_rows(p, first_row, 0, y, num_x);
}

/* Whether the call has few rows of x, in whole blocks, and a type that is quicker that way; if so, does it. */
static bool multiplied_few(const mtlq_call *call, const product *p, uint64_t num_groups)
{
    bool is_few = p->num_rows > 0 && p->num_rows <= p->type->few.max_rows;
    if (!is_few || p->args->in_dim % XBLOCK_VALUES != 0 || p->num_blocks > FEW_BLOCKS) {
        return false;
    }
    few_x *few = call->scratch; /* [num_blocks][num_rows], as the records */
    for (uint64_t i = 0; i < p->num_blocks * p->num_rows; i++) {
        few_prepare(p->x + i, few + i);
    }
    uint64_t begin, end;
    mtlq_share(call, num_groups, &begin, &end);
    for (uint64_t group = begin; group < end; group++) {
        multiply_few(p, few, group);
    }
    return true;
}
#endif

void MTLQ_NAME(linear_blocks)(const mtlq_call *call, const linear_type *type)
{
    const mtlq_linear_args *args = call->args;
    product p = {
        .weights = call->buffers[1],
        .x = call->buffers[2],
        .y = call->buffers[3],
        .args = args,
        .num_rows = mtlq_rows(call, args->rows),
        .type = type,
        .num_blocks = (args->in_dim + XBLOCK_VALUES - 1u) / XBLOCK_VALUES,
    };
    uint64_t num_groups = (args->out_dim + LINEAR_ROWS - 1u) / LINEAR_ROWS;
#ifdef MTLQ_LINEAR_FEW_H
    if (multiplied_few(call, &p, num_groups)) {
        return;
    }
#endif
    uint64_t num_chunks = (p.num_rows + MAX_CHUNK_ROWS - 1u) / MAX_CHUNK_ROWS;
    uint64_t wanted_chunks = min_u64(p.num_rows / MIN_CHUNK_ROWS, call->num_workers);
    num_chunks = num_chunks < wanted_chunks ? wanted_chunks : num_chunks;
    uint64_t begin, end;
    mtlq_share(call, num_chunks * num_groups, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t chunk = item / num_groups, group = item % num_groups;
        multiply_group(&p, group, p.num_rows * chunk / num_chunks, p.num_rows * (chunk + 1) / num_chunks);
    }
}
