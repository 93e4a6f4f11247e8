/* attention.c: attention over the f16 cache, causal or not, in a window or not, times sigmoid(gate) or not.
 * A row's result is defined block by block: scores, maximum, exponentials, their sum and the weighted values
 * of each block of block_tokens absolute positions, folded into the row's running triple in ascending order.
 * So one row or many, one worker or several give the same bits. See docs/cpu-arithmetic.md. */
#include <math.h>

#include "attention_items.h"
#include "lanes_math.h"
#include "tile.h"

/* Softmax over some positions, per query row: the maximum score, the sum of exp(score - max), and the sum
 * of exp(score - max) times V. */
typedef struct triple {
    float *max; /* [rows] */
    float *sum; /* [rows] */
    float *out; /* [rows][head_dim] */
} triple;

/* One item at work. Query rows are token-major, then the heads of the group. */
typedef struct attention_work {
    attention_item item;
    const mtlq_attention_args *args;
    uint32_t group, head_dim, block_tokens;
    const uint16_t *k, *v;            /* the item's head in the tile of block 0 */
    uint64_t tile_values;             /* from one block's tile to the next */
    float *q;                         /* [rows][q_stride], times scale */
    float *scores;                    /* [rows][score_stride] */
    uint64_t q_stride, score_stride;  /* not powers of two: rows would share cache sets */
    float *strip;                     /* [head_dim or block_tokens][LANES] */
    visible_range visible[MAX_QUERY_ROWS]; /* what each row sees of the block at work, from its begin */
    triple running, block;
} attention_work;

/* The query rows [begin, end) that see any of a block; those from `fresh` on see none before it. */
typedef struct block_rows {
    uint32_t begin, fresh, end;
} block_rows;

static uint32_t clamp_to_block(uint32_t position, uint32_t begin, uint32_t tokens)
{
    return position <= begin ? 0 : position - begin < tokens ? position - begin : tokens;
}

/* Fills visible, which is empty where the block lies before a row's window or after all that it sees. */
static block_rows find_visible(attention_work *work, uint32_t block)
{
    uint32_t begin = block * work->block_tokens, tokens = work->block_tokens, group = work->group;
    block_rows rows = {0};
    for (uint32_t token = 0; token < work->item.num_tokens; token++) {
        visible_range all =
            visible_to(work->args, work->item.first_position + token, work->item.end_position);
        visible_range seen = {clamp_to_block(all.begin, begin, tokens),
                              clamp_to_block(all.end, begin, tokens)};
        for (uint32_t i = 0; i < group; i++) {
            work->visible[token * group + i] = seen;
        }
        rows.begin += all.end <= begin ? group : 0;
        rows.fresh += all.end <= begin || all.begin < begin ? group : 0;
        rows.end += all.begin < begin + tokens ? group : 0;
    }
    return rows;
}

/* Columns [column, column + LANES) of an f16 matrix as the b of a tile. A single tile of rows reads them
 * where they are; more rows share one conversion. Strip by strip, the matrix that is read next comes in. */
static tile_operands strip_operands(const attention_work *work, const uint16_t *matrix, uint64_t stride,
                                    uint32_t n, uint32_t column, uint32_t num_rows, const uint16_t *next)
{
    const uint16_t *ahead = next + (uint64_t)column * n;
    if (num_rows <= LANES_TILE_ROWS) {
        return (tile_operands){.b_f16 = matrix + column, .b_stride = stride, .n = n, .ahead = ahead};
    }
    for (uint64_t i = 0; i < n; i++) {
        __builtin_prefetch(ahead + i * LANES, 0, 2);
        lanes_store(work->strip + i * LANES, lanes_load_f16(matrix + i * stride + column));
    }
    return (tile_operands){.b = work->strip, .b_stride = LANES, .n = n};
}

static uint32_t tile_rows(uint32_t row, uint32_t num_rows)
{
    return num_rows - row < LANES_TILE_ROWS ? num_rows - row : LANES_TILE_ROWS;
}

/* scores = q K, from the block's begin as far as any row of a tile sees. */
static void block_scores(const attention_work *work, uint32_t block, block_rows rows)
{
    uint32_t tokens = work->block_tokens, dim = work->head_dim;
    const uint16_t *k_tile = work->k + block * work->tile_values, *next = work->v + block * work->tile_values;
    for (uint32_t p = 0; p < work->visible[rows.end - 1].end; p += LANES) {
        tile_operands strip = strip_operands(work, k_tile, tokens, dim, p, rows.end - rows.begin, next);
        strip.a_stride = work->q_stride;
        strip.c_stride = work->score_stride;
        for (uint32_t r = rows.begin; r < rows.end; r += LANES_TILE_ROWS) {
            uint32_t count = tile_rows(r, rows.end);
            if (work->visible[r + count - 1].end > p) {
                strip.a = work->q + r * work->q_stride;
                strip.c = work->scores + r * work->score_stride + p;
                tile_multiply(&strip, count);
            }
        }
    }
}

/* scores = exp(scores - max) over the visible positions, 0 before them; fills max and sum. */
static void row_softmax(float *scores, visible_range visible, float *max, float *sum)
{
    lanes top = lanes_splat(-INFINITY), total = lanes_zero(), hidden = lanes_splat(-INFINITY);
    for (uint32_t p = 0; p < visible.end; p += LANES) {
        lanes s = lanes_load(scores + p);
        if (visible.end - p < LANES || visible.begin > p) { /* what lies outside may be anything */
            uint32_t before = visible.begin <= p ? 0 : visible.begin - p < LANES ? visible.begin - p : LANES;
            uint32_t left = visible.end - p < LANES ? visible.end - p : LANES;
            s = lanes_select(lanes_first(left), s, hidden);
            s = lanes_select(lanes_first(before), hidden, s);
            lanes_store(scores + p, s);
        }
        top = lanes_max(top, s);
    }
    *max = lanes_largest(top);
    for (uint32_t p = 0; p < visible.end; p += LANES) {
        lanes e = lanes_exp(lanes_sub(lanes_load(scores + p), lanes_splat(*max)));
        lanes_store(scores + p, e);
        total = lanes_add(total, e);
    }
    *sum = lanes_sum(total);
}

/* Goes on with row i of a tile, whose chain has come to tile.n, up to n. */
static void continue_row(tile_operands tile, uint32_t i, uint32_t n)
{
    tile.a += i * tile.a_stride + tile.n;
    tile.c += i * tile.c_stride;
    if (tile.b) {
        tile.b += tile.n * tile.b_stride;
    } else {
        tile.b_f16 += tile.n * tile.b_stride;
    }
    tile.n = n - tile.n;
    tile.accumulate = true;
    tile_multiply(&tile, 1);
}

/* out = exp(scores - max) V: each row from the block's begin to the last position that it sees. */
static void block_values(const attention_work *work, uint32_t block, block_rows rows, float *out)
{
    uint32_t dim = work->head_dim;
    const uint16_t *v_tile = work->v + block * work->tile_values;
    uint32_t next_block = block + 1 < work->item.first_block + work->item.num_blocks ? block + 1 : block;
    const uint16_t *next = work->k + next_block * work->tile_values;
    for (uint32_t d = 0; d < dim; d += LANES) {
        tile_operands strip = strip_operands(work, v_tile, dim, work->visible[rows.end - 1].end, d,
                                             rows.end - rows.begin, next);
        strip.a_stride = work->score_stride;
        strip.c_stride = dim;
        for (uint32_t r = rows.begin; r < rows.end; r += LANES_TILE_ROWS) {
            uint32_t count = tile_rows(r, rows.end);
            strip.a = work->scores + r * work->score_stride;
            strip.c = out + (uint64_t)r * dim + d;
            strip.n = work->visible[r].end; /* every row of the tile gets as far */
            tile_multiply(&strip, count);
            for (uint32_t i = 1; i < count; i++) {
                if (work->visible[r + i].end > strip.n) {
                    continue_row(strip, i, work->visible[r + i].end);
                }
            }
        }
    }
}

/* Attention to one block into *result, for the rows that see any of it. */
static void attend_block(attention_work *work, uint32_t block, block_rows rows, const triple *result)
{
    block_scores(work, block, rows);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        row_softmax(work->scores + r * work->score_stride, work->visible[r], result->max + r,
                    result->sum + r);
    }
    block_values(work, block, rows, result->out);
}

/* running = running and block together, rows [begin, end). */
static void fold(const triple *running, const triple *block, uint32_t begin, uint32_t end, uint32_t dim)
{
    for (uint32_t r = begin; r < end; r += LANES) {
        uint32_t left = end - r;
        lanes old_max = lanes_load_n(running->max + r, left), block_max = lanes_load_n(block->max + r, left);
        lanes max = lanes_max(old_max, block_max);
        lanes keep = lanes_exp(lanes_sub(old_max, max)), take = lanes_exp(lanes_sub(block_max, max));
        lanes kept = lanes_mul(lanes_load_n(running->sum + r, left), keep);
        lanes_store_n(running->max + r, max, left);
        lanes_store_n(running->sum + r, lanes_fma(lanes_load_n(block->sum + r, left), take, kept), left);
        float keeps[LANES], takes[LANES];
        lanes_store(keeps, keep);
        lanes_store(takes, take);
        for (uint32_t i = 0; i < LANES && i < left; i++) {
            float *out = running->out + (uint64_t)(r + i) * dim;
            const float *more = block->out + (uint64_t)(r + i) * dim;
            lanes row_keep = lanes_splat(keeps[i]), row_take = lanes_splat(takes[i]);
            for (uint32_t d = 0; d < dim; d += LANES) {
                lanes_store(out + d, lanes_fma(lanes_load(more + d), row_take,
                                               lanes_mul(lanes_load(out + d), row_keep)));
            }
        }
    }
}

/* running = block, rows [begin, end). */
static void copy_rows(const triple *running, const triple *block, uint32_t begin, uint32_t end, uint32_t dim)
{
    uint64_t count = end - begin;
    memcpy(running->max + begin, block->max + begin, count * sizeof *running->max);
    memcpy(running->sum + begin, block->sum + begin, count * sizeof *running->sum);
    memcpy(running->out + (uint64_t)begin * dim, block->out + (uint64_t)begin * dim,
           count * dim * sizeof *running->out);
}

/* The triple of rows row and up in block's partial results of a split item. */
static triple partial_triple(const attention_item *item, float *workspace, uint32_t block, uint32_t row,
                             uint32_t dim)
{
    uint64_t index = block - item->first_block;
    float *base = workspace + item->workspace_offset + index * item->num_rows * (dim + 2);
    uint32_t rows = item->num_rows;
    return (triple){base + row, base + rows + row, base + 2 * rows + (uint64_t)row * dim};
}

/* Where the query row lies among the step's [R][H] heads. */
static uint64_t query_index(const attention_batch *batch, const attention_item *item, uint32_t row)
{
    uint64_t step_row =
        (uint64_t)batch->query_start_loc[item->sequence] + item->first_token + row / batch->group;
    return step_row * batch->args->num_heads + item->kv_head * batch->group + row % batch->group;
}

/* o = out / sum, times sigmoid(gate) if there is a gate. */
static void write_row(const triple *row, const float *gate, uint32_t dim, float *o)
{
    lanes inverse = lanes_splat(1.0f / *row->sum);
    for (uint32_t d = 0; d < dim; d += LANES) {
        lanes mean = lanes_mul(lanes_load(row->out + d), inverse);
        lanes_store(o + d, gate ? lanes_mul(mean, lanes_sigmoid(lanes_load(gate + d))) : mean);
    }
}

static triple take_triple(float **scratch, uint32_t dim)
{
    triple t = {*scratch, *scratch + MAX_QUERY_ROWS, *scratch + 2 * MAX_QUERY_ROWS};
    *scratch += (uint64_t)MAX_QUERY_ROWS * (dim + 2);
    return t;
}

static attention_work begin_work(const mtlq_call *call, const attention_batch *batch,
                                 const attention_item *item)
{
    const mtlq_attention_args *args = call->args;
    const int32_t *sequence_slots = call->buffers[2];
    const float *q = call->buffers[4];
    uint64_t dim = args->head_dim, tokens = args->block_tokens;
    uint64_t head_values = dim * tokens, tile_values = args->num_kv_heads * head_values;
    uint64_t slot_tile = (uint64_t)sequence_slots[item->sequence] * args->max_context / tokens;
    uint64_t offset = slot_tile * tile_values + item->kv_head * head_values;
    attention_work work = {
        .item = *item,
        .args = args,
        .group = batch->group,
        .head_dim = args->head_dim,
        .block_tokens = args->block_tokens,
        .k = (const uint16_t *)call->buffers[5] + offset,
        .v = (const uint16_t *)call->buffers[6] + offset,
        .tile_values = tile_values,
        .q_stride = dim + LANES,
        .score_stride = tokens + LANES,
    };
    float *scratch = call->scratch;
    work.strip = scratch;
    work.q = work.strip + LANES * (dim > tokens ? dim : tokens);
    work.scores = work.q + MAX_QUERY_ROWS * work.q_stride;
    scratch = work.scores + MAX_QUERY_ROWS * work.score_stride;
    work.running = take_triple(&scratch, args->head_dim);
    work.block = take_triple(&scratch, args->head_dim);
    for (uint32_t r = 0; r < item->num_rows; r++) {
        const float *query = q + query_index(batch, item, r) * dim;
        for (uint32_t d = 0; d < dim; d += LANES) {
            lanes_store(work.q + r * work.q_stride + d,
                        lanes_mul(lanes_load(query + d), lanes_splat(args->scale)));
        }
    }
    return work;
}

static void finish_row(const mtlq_call *call, const attention_batch *batch, const attention_item *item,
                       uint32_t row, const triple *result)
{
    const float *qg = call->buffers[7];
    float *o = call->buffers[8];
    uint64_t query = query_index(batch, item, row), dim = batch->args->head_dim;
    const float *gate = batch->args->gated ? qg + (2 * query + 1) * dim : NULL;
    write_row(result, gate, batch->args->head_dim, o + query * dim);
}

static void attend_whole(const mtlq_call *call, const attention_batch *batch, const attention_item *item)
{
    attention_work work = begin_work(call, batch, item);
    for (uint32_t i = 0; i < item->num_blocks; i++) {
        block_rows rows = find_visible(&work, item->first_block + i);
        bool is_first = rows.fresh == rows.begin;
        attend_block(&work, item->first_block + i, rows, is_first ? &work.running : &work.block);
        if (!is_first) {
            fold(&work.running, &work.block, rows.begin, rows.fresh, work.head_dim);
            copy_rows(&work.running, &work.block, rows.fresh, rows.end, work.head_dim);
        }
    }
    for (uint32_t r = 0; r < item->num_rows; r++) {
        triple row = {work.running.max + r, work.running.sum + r,
                      work.running.out + (uint64_t)r * work.head_dim};
        finish_row(call, batch, item, r, &row);
    }
}

/* This worker's blocks of a split item, each into its own place in the workspace. */
static void attend_part(const mtlq_call *call, const attention_batch *batch, const attention_item *item)
{
    uint32_t begin = item_cut(batch, item, call->worker), end = item_cut(batch, item, call->worker + 1);
    if (begin < end) {
        attention_work work = begin_work(call, batch, item);
        for (uint32_t block = item->first_block + begin; block < item->first_block + end; block++) {
            triple partial = partial_triple(item, call->buffers[9], block, 0, work.head_dim);
            attend_block(&work, block, find_visible(&work, block), &partial);
        }
    }
}

/* Folds the partial results of one row of a split item, in block order. */
static void merge_row(const mtlq_call *call, const attention_batch *batch, const attention_item *item,
                      uint32_t row)
{
    uint32_t dim = batch->args->head_dim, tokens = batch->args->block_tokens;
    uint32_t position = item->first_position + row / batch->group;
    visible_range visible = visible_to(batch->args, position, item->end_position);
    triple running = partial_triple(item, call->buffers[9], visible.begin / tokens, row, dim);
    for (uint32_t block = visible.begin / tokens + 1; block <= (visible.end - 1) / tokens; block++) {
        triple partial = partial_triple(item, call->buffers[9], block, row, dim);
        fold(&running, &partial, 0, 1, dim);
    }
    finish_row(call, batch, item, row, &running);
}

void MTLQ_NAME(attention)(const mtlq_call *call)
{
    const mtlq_attention_args *args = call->args;
    attention_batch batch = {
        .args = args,
        .query_start_loc = call->buffers[1],
        .kv_valid = call->buffers[3],
        .num_sequences = mtlq_rows(call, MTLQ_SEQUENCES),
        .group = args->num_heads / args->num_kv_heads,
        .num_workers = call->num_workers,
    };
    batch.total_cost = count_cost(&batch);
    bool any_split = false;
    attention_item item = {0};
    while (next_item(&batch, &item)) {
        any_split |= item.is_split;
        if (item.is_split) {
            attend_part(call, &batch, &item);
        } else if (item.owner == call->worker) {
            attend_whole(call, &batch, &item);
        }
    }
    if (!any_split) {
        return;
    }
    mtlq_pool_sync(call);
    item = (attention_item){0};
    uint32_t num_merged = 0;
    while (next_item(&batch, &item)) {
        for (uint32_t row = 0; item.is_split && row < item.num_rows; row++) {
            if (num_merged++ % call->num_workers == call->worker) {
                merge_row(call, &batch, &item, row);
            }
        }
    }
}
