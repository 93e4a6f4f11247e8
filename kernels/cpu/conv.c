/* conv.c: causal depthwise convolution over 4 tokens, SiLU, then q and k heads to unit length; and the last
 * three raw rows of each sequence for its next step. */
#include "lanes_math.h"
#include "rows.h"

#define TAPS 4u
#define TAIL (TAPS - 1u)

/* The raw rows of one sequence: those of this step, before them those replayed, before them the tail. */
typedef struct conv_sequence {
    const float *u;    /* [num_rows][num_channels] */
    const float *tape; /* [num_pending][tape_stride] */
    const float *tail; /* [TAIL][tail_stride] */
    uint32_t num_rows, num_pending;
    uint64_t num_channels;
    uint64_t tape_stride;
    uint64_t tail_stride; /* num_channels, or 0 at the start of a sequence: one row of zeros */
    float *new_tail;      /* [TAIL][num_channels] */
    float *record;        /* [num_rows][tape_stride], NULL where unbound */
} conv_sequence;

/* Row t from -TAIL to num_rows - 1. */
static const float *raw_row(const conv_sequence *sequence, int64_t t)
{
    if (t >= 0) {
        return sequence->u + (uint64_t)t * sequence->num_channels;
    }
    t += sequence->num_pending;
    return t >= 0 ? sequence->tape + (uint64_t)t * sequence->tape_stride
                  : sequence->tail + (uint64_t)(t + TAIL) * sequence->tail_stride;
}

/* y = silu(sum of taps) for channels [begin, end). */
static void convolve(const float *const u[TAPS], const float *w, uint64_t num_channels, uint64_t begin,
                     uint64_t end, float *y)
{
    for (uint64_t c = begin; c < end; c += LANES) {
        lanes sum = lanes_mul(lanes_load(u[0] + c), lanes_load(w + c));
        sum = lanes_fma(lanes_load(u[1] + c), lanes_load(w + num_channels + c), sum);
        sum = lanes_fma(lanes_load(u[2] + c), lanes_load(w + 2 * num_channels + c), sum);
        sum = lanes_fma(lanes_load(u[3] + c), lanes_load(w + 3 * num_channels + c), sum);
        lanes_store(y + c, lanes_silu(sum));
    }
}

static void scale_to_unit_length(float *x, uint32_t dim, float eps, float scale)
{
    lanes factor = lanes_splat(scale / sqrtf(row_sum_of_squares(x, dim) + eps));
    for (uint32_t i = 0; i < dim; i += LANES) {
        lanes_store(x + i, lanes_mul(lanes_load(x + i), factor));
    }
}

static conv_sequence sequence_of(const mtlq_call *call, uint64_t s, const float *zeros)
{
    const mtlq_conv_args *args = call->args;
    const int32_t *query_start_loc = call->buffers[1];
    const int32_t *sequence_slots = call->buffers[2];
    const int32_t *kv_valid = call->buffers[3];
    const float *u = call->buffers[5];
    const int32_t *state = call->buffers[9];
    uint64_t slot = (uint64_t)sequence_slots[s], bank = (uint64_t)((const int32_t *)call->buffers[4])[s];
    float *tail = (float *)call->buffers[7] + slot * args->slot_stride;
    float *tape = call->buffers[11], *record = tape + (1 - bank) * args->tape_bank_stride;
    return (conv_sequence){
        .u = u + (uint64_t)query_start_loc[s] * args->num_channels,
        .tape = tape + bank * args->tape_bank_stride + slot * args->tape_slot_stride,
        .tail = kv_valid[s] ? tail + bank * args->bank_stride : zeros,
        .num_rows = (uint32_t)(query_start_loc[s + 1] - query_start_loc[s]),
        .num_pending = (uint32_t)((const int32_t *)call->buffers[10])[s],
        .num_channels = args->num_channels,
        .tape_stride = args->tape_row_stride,
        .tail_stride = kv_valid[s] ? args->num_channels : 0,
        .new_tail = tail + (1 - bank) * args->bank_stride,
        .record = state[s] == MTLQ_UNBOUND ? NULL : record + (uint64_t)state[s] * args->tape_slot_stride,
    };
}

/* Channels [begin, end) of the new tail, which ends before the rows of a draft, and of those on the tape. */
static void keep_raw_rows(const conv_sequence *sequence, uint64_t begin, uint64_t end)
{
    uint64_t num_bytes = (end - begin) * sizeof(float);
    int64_t last = sequence->record ? 0 : sequence->num_rows;
    for (uint32_t j = 0; j < TAIL; j++) {
        float *tail_row = sequence->new_tail + j * sequence->num_channels;
        memcpy(tail_row + begin, raw_row(sequence, last + j - TAIL) + begin, num_bytes);
    }
    for (uint32_t t = 0; sequence->record && t < sequence->num_rows; t++) {
        memcpy(sequence->record + t * sequence->tape_stride + begin, raw_row(sequence, t) + begin, num_bytes);
    }
}

void MTLQ_NAME(conv)(const mtlq_call *call)
{
    const mtlq_conv_args *args = call->args;
    const int32_t *query_start_loc = call->buffers[1];
    const float *w = call->buffers[6];
    float *y = call->buffers[8];
    uint64_t num_channels = args->num_channels, dim = args->head_dim;
    float *zeros = call->scratch;
    memset(zeros, 0, num_channels * sizeof *zeros);

    /* A worker takes some heads of all rows: shares are even whatever the lengths of the sequences. */
    uint64_t first_head, last_head;
    mtlq_share(call, num_channels / dim, &first_head, &last_head);
    uint64_t begin = first_head * dim, end = last_head * dim;
    for (uint64_t s = 0; s < mtlq_rows(call, MTLQ_SEQUENCES) && begin < end; s++) {
        conv_sequence sequence = sequence_of(call, s, zeros);
        for (uint32_t t = 0; t < sequence.num_rows; t++) {
            const float *u[TAPS];
            for (uint32_t tap = 0; tap < TAPS; tap++) {
                u[tap] = raw_row(&sequence, (int64_t)t + tap - TAIL);
            }
            float *y_row = y + ((uint64_t)query_start_loc[s] + t) * num_channels;
            for (uint64_t channel = begin; channel < end; channel += dim) {
                uint64_t head = channel / dim;
                convolve(u, w, num_channels, channel, channel + dim, y_row);
                if (head < 2 * args->num_key_heads) {
                    float scale = head < args->num_key_heads ? args->q_scale : 1.0f;
                    scale_to_unit_length(y_row + channel, args->head_dim, args->eps, scale);
                }
            }
        }
        keep_raw_rows(&sequence, begin, end);
    }
}
