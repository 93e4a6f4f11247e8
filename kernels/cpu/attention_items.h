/* attention_items.h: how attention divides its work. An item is some tokens of one sequence and one
 * key/value head with its group of query heads; its cost is spread over the blocks it reads. Workers take
 * equal shares of the cost; an item that falls to several workers is split by blocks when the workspace
 * holds its partial results, and goes whole to one of them when not. Results do not depend on this. */
#ifndef MTLQ_ATTENTION_ITEMS_H
#define MTLQ_ATTENTION_ITEMS_H

#include <stdbool.h>

#include "isa.h"

#define MAX_QUERY_ROWS 96u /* of an item: its tokens times its query heads */
#define BLOCK_OVERHEAD 4u  /* cost of bringing a block in, in query rows */

typedef struct attention_batch {
    const mtlq_attention_args *args;
    const int32_t *query_start_loc;
    const int32_t *kv_valid;
    uint32_t num_sequences;
    uint32_t group; /* query heads of a key/value head */
    uint32_t num_workers;
    uint64_t total_cost;
} attention_batch;

typedef struct attention_item {
    uint32_t sequence;
    uint32_t first_token; /* in its sequence's rows */
    uint32_t num_tokens;
    uint32_t kv_head;
    uint32_t first_position; /* of first_token */
    uint32_t num_rows;       /* query rows: token-major, then the heads of the group */
    uint32_t end_position;   /* of the sequence after this step */
    uint32_t first_block;    /* blocks first_block .. first_block + num_blocks - 1 are read */
    uint32_t num_blocks;
    uint32_t owner;          /* of an item that is not split */
    bool is_split;
    uint64_t workspace_offset; /* in floats, of a split item: [num_blocks][num_rows][head_dim + 2] */
    uint64_t cost_begin, block_cost;
} attention_item;

/* The positions [begin, end) that a query sees. Both ends never fall from one query to the next. */
typedef struct visible_range {
    uint32_t begin, end;
} visible_range;

static inline visible_range visible_to(const mtlq_attention_args *args, uint32_t position,
                                       uint32_t end_position)
{
    uint32_t window = args->window ? args->window : UINT32_MAX;
    uint32_t ahead = args->causal ? 1 : window; /* how many positions from its own on it may see */
    return (visible_range){
        .begin = position < window ? 0 : position - window + 1,
        .end = end_position - position < ahead ? end_position : position + ahead,
    };
}

static inline uint64_t item_workspace_floats(const attention_batch *batch, const attention_item *item)
{
    return (uint64_t)item->num_blocks * item->num_rows * (batch->args->head_dim + 2);
}

/* The first of the item's blocks, counted from first_block, that falls to this worker or a later one. */
static inline uint32_t item_cut(const attention_batch *batch, const attention_item *item, uint32_t worker)
{
    uint64_t share = (worker * batch->total_cost + batch->num_workers - 1) / batch->num_workers;
    if (share <= item->cost_begin) {
        return 0;
    }
    uint64_t block = (share - item->cost_begin + item->block_cost - 1) / item->block_cost;
    return block < item->num_blocks ? (uint32_t)block : item->num_blocks;
}

static inline uint32_t item_owner_of_block(const attention_batch *batch, const attention_item *item,
                                           uint32_t block)
{
    uint64_t cost = item->cost_begin + block * item->block_cost;
    return (uint32_t)(cost * batch->num_workers / batch->total_cost);
}

/* The item after *item, which starts as all zero; false at the end. Every worker walks the same list. */
static inline bool next_item(const attention_batch *batch, attention_item *item)
{
    const mtlq_attention_args *args = batch->args;
    attention_item last = *item;
    if (last.num_tokens > 0 && last.kv_head + 1 < args->num_kv_heads) {
        item->kv_head++;
    } else {
        item->kv_head = 0;
        item->first_token += item->num_tokens;
        uint32_t left = 0; /* rows of the sequence from first_token on */
        for (; item->sequence < batch->num_sequences; item->sequence++, item->first_token = 0) {
            const int32_t *start = batch->query_start_loc + item->sequence;
            uint32_t num_tokens = (uint32_t)(start[1] - start[0]);
            left = num_tokens - item->first_token;
            item->end_position = (uint32_t)batch->kv_valid[item->sequence] + num_tokens;
            if (left > 0) {
                break;
            }
        }
        if (item->sequence == batch->num_sequences) {
            return false;
        }
        uint32_t most = batch->group < MAX_QUERY_ROWS ? MAX_QUERY_ROWS / batch->group : 1;
        item->num_tokens = left < most ? left : most;
        item->num_rows = item->num_tokens * batch->group;
        item->first_position = (uint32_t)batch->kv_valid[item->sequence] + item->first_token;
        visible_range first = visible_to(args, item->first_position, item->end_position);
        visible_range last =
            visible_to(args, item->first_position + item->num_tokens - 1, item->end_position);
        item->first_block = first.begin / args->block_tokens;
        item->num_blocks = (last.end - 1) / args->block_tokens + 1 - item->first_block;
        item->block_cost = BLOCK_OVERHEAD + item->num_rows;
    }
    item->cost_begin = last.cost_begin + last.num_blocks * last.block_cost;
    if (batch->total_cost == 0) { /* counting */
        return true;
    }
    item->workspace_offset += last.is_split ? item_workspace_floats(batch, &last) : 0;
    uint64_t end = item->workspace_offset + item_workspace_floats(batch, item);
    item->is_split =
        item_owner_of_block(batch, item, 0) != item_owner_of_block(batch, item, item->num_blocks - 1) &&
        end * sizeof(float) <= args->num_workspace_bytes;
    item->owner = item_owner_of_block(batch, item, item->num_blocks / 2);
    return true;
}

static inline uint64_t count_cost(attention_batch *batch)
{
    attention_item item = {0};
    uint64_t total = 0;
    while (next_item(batch, &item)) {
        total = item.cost_begin + item.num_blocks * item.block_cost;
    }
    return total;
}

#endif
