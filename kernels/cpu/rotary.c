/* rotary.c: RMS norm of each query and key head, rotary positions, and the append to the K/V cache in f16. */
#include "rows.h"

typedef struct rotary_row {
    const float *cosines; /* [rotary_dim / 2], then as many sines */
    uint64_t tile;        /* in values, of this position's K and V tiles */
    uint32_t place;       /* of this position in its tile */
} rotary_row;

/* Lanes j and j + half turn together: a' = a cos - b sin, b' = b cos + a sin. */
static void rotate(float *x, const float *cosines, uint32_t half)
{
    for (uint32_t j = 0; j < half; j += LANES) {
        uint32_t left = half - j;
        lanes a = lanes_load_n(x + j, left), b = lanes_load_n(x + half + j, left);
        lanes c = lanes_load_n(cosines + j, left), s = lanes_load_n(cosines + half + j, left);
        lanes_store_n(x + j, lanes_sub(lanes_mul(a, c), lanes_mul(b, s)), left);
        lanes_store_n(x + half + j, lanes_add(lanes_mul(b, c), lanes_mul(a, s)), left);
    }
}

/* Positions are innermost in a K tile: one value every block_tokens. */
static void store_key(const mtlq_rotary_args *args, const float *head, uint16_t *k_tile, uint32_t place)
{
    for (uint32_t d = 0; d < args->head_dim; d += LANES) {
        uint16_t halves[LANES];
        lanes_store_f16(halves, lanes_load(head + d));
        for (uint32_t i = 0; i < LANES; i++) {
            k_tile[(uint64_t)(d + i) * args->block_tokens + place] = halves[i];
        }
    }
}

static void norm_and_rotate(const mtlq_rotary_args *args, const float *x, const float *w,
                            const rotary_row *row, float *y)
{
    row_scale(x, row_inverse_rms(x, args->head_dim, args->eps), w, args->head_dim, y);
    rotate(y, row->cosines, args->rotary_dim / 2);
}

void MTLQ_NAME(rotary)(const mtlq_call *call)
{
    const mtlq_rotary_args *args = call->args;
    const int32_t *row_sequence = call->buffers[1];
    const int32_t *positions = call->buffers[2];
    const int32_t *sequence_slots = call->buffers[3];
    const float *qg = call->buffers[4];
    const float *k = call->buffers[5];
    const float *v = call->buffers[6];
    const float *q_norm = call->buffers[7];
    const float *k_norm = call->buffers[8];
    const float *rope = call->buffers[9];
    uint16_t *k_cache = call->buffers[10];
    uint16_t *v_cache = call->buffers[11];
    float *q = call->buffers[12];
    float *head = call->scratch;
    uint64_t dim = args->head_dim, tokens = args->block_tokens;
    uint64_t query_stride = args->gated ? 2 * dim : dim; /* the gate lanes are attention's */

    /* Item = (row, head): the query heads, then the key/value heads. */
    uint64_t num_heads = args->num_heads + args->num_kv_heads;
    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, MTLQ_ROWS) * num_heads, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t r = item / num_heads, h = item % num_heads;
        uint64_t slot = (uint64_t)sequence_slots[row_sequence[r]];
        uint64_t at = slot * args->max_context + (uint64_t)positions[r];
        rotary_row row = {
            .cosines = rope + (uint64_t)positions[r] * args->rotary_dim,
            .tile = at / tokens * args->num_kv_heads * dim * tokens,
            .place = (uint32_t)(at % tokens),
        };
        if (h < args->num_heads) {
            uint64_t query = r * args->num_heads + h;
            norm_and_rotate(args, qg + query * query_stride, q_norm, &row, q + query * dim);
            continue;
        }
        uint64_t kv_head = h - args->num_heads;
        uint64_t source = (r * args->num_kv_heads + kv_head) * dim;
        norm_and_rotate(args, k + source, k_norm, &row, head);
        store_key(args, head, k_cache + row.tile + kv_head * dim * tokens, row.place);
        uint16_t *values = v_cache + row.tile + (kv_head * tokens + row.place) * dim;
        for (uint64_t d = 0; d < dim; d += LANES) {
            lanes_store_f16(values + d, lanes_load(v + source + d));
        }
    }
}
