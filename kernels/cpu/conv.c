/* conv.c: causal depthwise convolution over 4 tokens, SiLU, then q and k heads to unit length; and the last
 * three raw rows of each sequence for its next step. */
#include "lanes_math.h"
#include "rows.h"

#define TAPS 4u
#define TAIL (TAPS - 1u)

/* One sequence's rows and tails, from the first channel of one head on. */
typedef struct conv_head {
    const float *u;      /* [num_rows][row_stride] */
    const float *tail;   /* [TAIL][row_stride], of the rows before; all zero at the start of a sequence */
    const float *w;      /* [TAPS][row_stride] */
    uint64_t row_stride; /* num_channels, but 0 for a tail of zeros */
    uint32_t num_rows;
    uint32_t num_channels; /* of the head */
    uint64_t tail_stride;
} conv_head;

/* Row t of the raw input, where rows -3..-1 are the tail. */
static const float *raw_row(const conv_head *head, int64_t t)
{
    return t >= 0 ? head->u + (uint64_t)t * head->row_stride
                  : head->tail + (uint64_t)(t + TAIL) * head->tail_stride;
}

static void convolve_row(const conv_head *head, uint32_t t, float *y)
{
    const float *u[TAPS];
    for (uint32_t tap = 0; tap < TAPS; tap++) {
        u[tap] = raw_row(head, (int64_t)t + tap - TAIL);
    }
    for (uint32_t c = 0; c < head->num_channels; c += LANES) {
        uint32_t left = head->num_channels - c;
        lanes sum = lanes_mul(lanes_load_n(u[0] + c, left), lanes_load_n(head->w + c, left));
        for (uint32_t tap = 1; tap < TAPS; tap++) {
            const float *w = head->w + tap * head->row_stride;
            sum = lanes_fma(lanes_load_n(u[tap] + c, left), lanes_load_n(w + c, left), sum);
        }
        lanes_store_n(y + c, lanes_silu(sum), left);
    }
}

static void scale_to_unit_length(float *x, uint32_t dim, float eps, float scale)
{
    lanes factor = lanes_splat(scale / sqrtf(row_sum_of_squares(x, dim) + eps));
    for (uint32_t i = 0; i < dim; i += LANES) {
        lanes_store_n(x + i, lanes_mul(lanes_load_n(x + i, dim - i), factor), dim - i);
    }
}

static void write_tail(const conv_head *head, float *tail)
{
    for (uint32_t j = 0; j < TAIL; j++) {
        const float *row = raw_row(head, (int64_t)head->num_rows + j - TAIL);
        memcpy(tail + j * head->row_stride, row, head->num_channels * sizeof *tail);
    }
}

void MTLQ_NAME(conv)(const mtlq_call *call)
{
    const mtlq_conv_args *args = call->args;
    const int32_t *query_start_loc = call->buffers[1];
    const int32_t *sequence_slots = call->buffers[2];
    const int32_t *kv_valid = call->buffers[3];
    const int32_t *bank = call->buffers[4];
    const float *u = call->buffers[5];
    const float *w = call->buffers[6];
    float *tails = call->buffers[7];
    float *y = call->buffers[8];
    uint32_t num_channels = args->num_channels, dim = args->head_dim;
    float *zeros = call->scratch;
    memset(zeros, 0, dim * sizeof *zeros);

    /* Item = (head, sequence), heads outermost: shares are even whatever the lengths of the sequences. */
    uint64_t num_sequences = mtlq_rows(call, MTLQ_SEQUENCES);
    uint64_t num_heads = (num_channels + dim - 1) / dim;
    uint64_t begin, end;
    mtlq_share(call, num_heads * num_sequences, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t h = item / num_sequences, s = item % num_sequences;
        uint64_t channel = h * dim, first = (uint64_t)query_start_loc[s];
        float *slot_tails = tails + (uint64_t)sequence_slots[s] * args->slot_stride + channel;
        const float *old_tail = slot_tails + (uint64_t)bank[s] * args->bank_stride;
        conv_head head = {
            .u = u + first * num_channels + channel,
            .tail = kv_valid[s] ? old_tail : zeros,
            .w = w + channel,
            .row_stride = num_channels,
            .num_rows = (uint32_t)(query_start_loc[s + 1] - query_start_loc[s]),
            .num_channels = num_channels - channel < dim ? (uint32_t)(num_channels - channel) : dim,
            .tail_stride = kv_valid[s] ? num_channels : 0,
        };
        for (uint32_t t = 0; t < head.num_rows; t++) {
            float *y_row = y + (first + t) * num_channels + channel;
            convolve_row(&head, t, y_row);
            if (h < 2 * args->num_key_heads) {
                float scale = h < args->num_key_heads ? args->q_scale : 1.0f;
                scale_to_unit_length(y_row, dim, args->eps, scale);
            }
        }
        write_tail(&head, slot_tails + (uint64_t)(1 - bank[s]) * args->bank_stride);
    }
}
