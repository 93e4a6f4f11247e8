/* select_path.c: the tokens of drafted blocks, left to right: of a row's 16 largest logits the one that fits
 * best behind the token before it. */
#include <math.h>
#include <stdbool.h>

#include "lanes.h"

#define TOP   16u
#define CHUNK 8192u       /* logits per work item; args.h sizes the workspace by it */
#define STEP  (4 * LANES) /* logits that are passed over at once */

/* The best of what was offered, best first. */
typedef struct candidates {
    uint32_t count;
    float values[TOP];
    int32_t ids[TOP];
} candidates;

/* LANES values of a codebook from index i on. */
typedef lanes (*load_fn)(const void *table, uint64_t i);

static lanes load_f32(const void *table, uint64_t i) { return lanes_load((const float *)table + i); }
static lanes load_f16(const void *table, uint64_t i) { return lanes_load_f16((const uint16_t *)table + i); }
static lanes load_bf16(const void *table, uint64_t i) { return lanes_load_bf16((const uint16_t *)table + i); }

/* A total order, so that the answer does not depend on who asks when. */
static bool is_better(float a, int32_t a_id, float b, int32_t b_id) { return a > b || (a == b && a_id < b_id); }

static void offer(candidates *best, float value, int32_t id)
{
    value = isnan(value) ? -INFINITY : value;
    uint32_t i = best->count;
    if (i < TOP) {
        best->count++;
    } else if (is_better(value, id, best->values[TOP - 1], best->ids[TOP - 1])) {
        i = TOP - 1;
    } else {
        return;
    }
    for (; i > 0 && is_better(value, id, best->values[i - 1], best->ids[i - 1]); i--) {
        best->values[i] = best->values[i - 1];
        best->ids[i] = best->ids[i - 1];
    }
    best->values[i] = value;
    best->ids[i] = id;
}

/* The largest of logits[begin, end) to ids[TOP], -1 where there are fewer. */
static void find_top(const float *logits, uint32_t begin, uint32_t end, int32_t *ids)
{
    candidates best = {0};
    for (uint32_t i = begin; i < end;) {
        uint32_t last = end - i < STEP ? end : i + STEP;
        if (last == i + STEP && best.count == TOP) {
            lanes top = lanes_splat(-INFINITY);
            for (uint32_t j = i; j < last; j += LANES) {
                top = lanes_max(lanes_load(logits + j), top); /* passes over NaN */
            }
            i = lanes_largest(top) > best.values[TOP - 1] ? i : last; /* among equals the earlier id stays */
        }
        for (; i < last; i++) {
            offer(&best, logits[i], (int32_t)i);
        }
    }
    for (uint32_t i = 0; i < TOP; i++) {
        ids[i] = i < best.count ? best.ids[i] : -1;
    }
}

/* sum(a h b) over a row of each codebook */
static float affinity(const void *predecessor, uint64_t p, const void *successor, uint64_t b, const float *h,
                      uint32_t rank, load_fn load)
{
    lanes sum = lanes_zero();
    for (uint32_t i = 0; i < rank; i += LANES) {
        lanes context = lanes_mul(load(predecessor, p * rank + i), lanes_load(h + i));
        sum = lanes_fma(context, load(successor, b * rank + i), sum);
    }
    return lanes_sum(sum);
}

/* The token of row l behind token p. */
static int32_t choose(const mtlq_call *call, uint32_t l, int32_t p, load_fn load)
{
    const mtlq_select_path_args *args = call->args;
    const float *logits = (const float *)call->buffers[3] + (uint64_t)l * args->stride;
    const float *h = (const float *)call->buffers[4] + (uint64_t)l * args->rank;
    uint64_t num_ids = (uint64_t)(args->num_valid + CHUNK - 1) / CHUNK * TOP;
    const int32_t *ids = (const int32_t *)call->buffers[8] + l * num_ids;
    candidates best = {0}, path = {0};
    for (uint64_t i = 0; i < num_ids; i++) {
        if (ids[i] >= 0) {
            offer(&best, logits[ids[i]], ids[i]);
        }
    }
    for (uint32_t i = 0; i < best.count; i++) {
        float fit = affinity(call->buffers[5], (uint64_t)p, call->buffers[6], (uint64_t)best.ids[i], h,
                             args->rank, load);
        offer(&path, best.values[i] + fit, best.ids[i]);
    }
    return path.ids[0];
}

static void select_path(const mtlq_call *call, load_fn load)
{
    const mtlq_select_path_args *args = call->args;
    const int32_t *input_ids = call->buffers[1], *logit_rows = call->buffers[2];
    const float *logits = call->buffers[3];
    int32_t *chosen = call->buffers[7], *workspace = call->buffers[8];
    uint32_t num_rows = mtlq_rows(call, MTLQ_LOGIT_ROWS);
    uint32_t num_chunks = (args->num_valid + CHUNK - 1) / CHUNK;

    uint64_t begin, end;
    mtlq_share(call, (uint64_t)num_rows * num_chunks, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint32_t first = (uint32_t)(item % num_chunks) * CHUNK;
        uint32_t last = args->num_valid - first < CHUNK ? args->num_valid : first + CHUNK;
        find_top(logits + item / num_chunks * args->stride, first, last, workspace + item * TOP);
    }
    mtlq_pool_sync(call);
    int32_t before = -1;
    for (uint32_t l = 0, path = 0; l < num_rows; l++) {
        bool begins = l == 0 || logit_rows[l] != logit_rows[l - 1] + 1;
        path += begins;
        if (path % call->num_workers == call->worker) {
            before = choose(call, l, begins ? input_ids[logit_rows[l] - 1] : before, load);
            chosen[l] = before;
        }
    }
}

void MTLQ_NAME(select_path_f32)(const mtlq_call *call) { select_path(call, load_f32); }
void MTLQ_NAME(select_path_f16)(const mtlq_call *call) { select_path(call, load_f16); }
void MTLQ_NAME(select_path_bf16)(const mtlq_call *call) { select_path(call, load_bf16); }
