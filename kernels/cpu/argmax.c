/* argmax.c: the index of the largest logit, the lowest among equals; NaN never wins.
 * Where nothing is above -infinity it is 0. */
#include <math.h>
#include <stdatomic.h>

#include "lanes.h"

#define CHUNK 8192u /* logits per work item; a multiple of LANES, so that lane indices are exact floats */

/* Is logits[i] a better answer than logits[j]? NaN counts as -infinity. A total order: the answer does not
 * depend on who asks when. */
static int is_better(const float *logits, int32_t i, int32_t j)
{
    float a = isnan(logits[i]) ? -INFINITY : logits[i];
    float b = isnan(logits[j]) ? -INFINITY : logits[j];
    return a > b || (a == b && i < j);
}

/* The best index in [begin, end), which is not empty. */
static int32_t best_in(const float *logits, uint32_t begin, uint32_t end)
{
    lanes best = lanes_splat(-INFINITY), best_step = lanes_zero(), step = lanes_zero();
    uint32_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        lanes x = lanes_load(logits + i);
        lanes_mask larger = lanes_lt(best, x);
        best = lanes_select(larger, x, best);
        best_step = lanes_select(larger, step, best_step);
        step = lanes_add(step, lanes_splat(1.0f));
    }
    float steps[LANES];
    lanes_store(steps, best_step);
    int32_t answer = (int32_t)begin;
    for (uint32_t lane = 0; lane < LANES && begin + LANES <= end; lane++) {
        int32_t candidate = (int32_t)(begin + LANES * (uint32_t)steps[lane] + lane);
        answer = is_better(logits, candidate, answer) ? candidate : answer;
    }
    for (; i < end; i++) {
        answer = is_better(logits, (int32_t)i, answer) ? (int32_t)i : answer;
    }
    return answer;
}

void MTLQ_NAME(argmax)(const mtlq_call *call)
{
    const mtlq_argmax_args *args = call->args;
    const float *logits = call->buffers[1];
    _Atomic int32_t *ids = call->buffers[2];
    uint32_t num_rows = mtlq_rows(call, args->rows);
    uint32_t num_chunks = (args->num_valid + CHUNK - 1) / CHUNK;

    if (call->worker == 0) {
        for (uint32_t row = 0; row < num_rows; row++) {
            atomic_store_explicit(&ids[row], 0, memory_order_relaxed);
        }
    }
    mtlq_pool_sync(call);
    uint64_t begin, end;
    mtlq_share(call, (uint64_t)num_rows * num_chunks, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t row = item / num_chunks;
        const float *row_logits = logits + row * args->stride;
        uint32_t first = (uint32_t)(item % num_chunks) * CHUNK;
        uint32_t last = args->num_valid - first < CHUNK ? args->num_valid : first + CHUNK;
        int32_t candidate = best_in(row_logits, first, last);
        int32_t current = atomic_load_explicit(&ids[row], memory_order_relaxed);
        while (is_better(row_logits, candidate, current) &&
               !atomic_compare_exchange_weak_explicit(&ids[row], &current, candidate, memory_order_relaxed,
                                                      memory_order_relaxed)) {
        }
    }
}
