/* delta_chunk.c: the gated delta rule in chunks of 32 rows, the form for matrix hardware, here as its twin.
 * Of one value head and one chunk, with G the running sum of g inside the chunk:
 *   D[i][j] = exp(G[i] - G[j]) for j <= i, else 0
 *   (I + A) N = beta (V - exp(G) K S),  A = beta (K K^T) D below the diagonal
 *   O = exp(G) Q S + ((Q K^T) D) N
 *   S = exp(G[n - 1]) S + (exp(G[n - 1] - G) K)^T N
 * All exponents are <= 0. Chunks are counted from the first row of the step. */
#include "delta_rows.h"
#include "tile.h"

#define CHUNK 32u

typedef struct chunk {
    uint32_t num_rows;
    float g_sum[CHUNK], beta[CHUNK], decay[CHUNK]; /* G, beta, exp(G) */
    float a[CHUNK][CHUNK];                         /* A, below the diagonal */
    float p[CHUNK][CHUNK];                         /* (Q K^T) D, with the diagonal */
    float *k_columns;                              /* K^T [dk][CHUNK], zero beyond num_rows */
} chunk;

/* c[rows][LANES] (+)= a b for any number of rows. */
static void multiply(tile_operands o, uint32_t num_rows)
{
    for (uint32_t r = 0; r < num_rows; r += LANES_TILE_ROWS) {
        tile_multiply(&o, num_rows - r < LANES_TILE_ROWS ? num_rows - r : LANES_TILE_ROWS);
        o.a += LANES_TILE_ROWS * o.a_stride;
        o.c += LANES_TILE_ROWS * o.c_stride;
    }
}

static void chunk_gates(const delta_rows *rows, uint32_t first, chunk *c)
{
    float g[CHUNK];
    for (uint32_t t = 0; t < CHUNK; t += LANES) {
        lanes g_lanes, beta;
        delta_gates(rows, first + t, &g_lanes, &beta);
        lanes_store(g + t, g_lanes);
        lanes_store(c->beta + t, beta);
    }
    float sum = 0.0f;
    for (uint32_t t = 0; t < CHUNK; t++) {
        sum += t < c->num_rows ? g[t] : 0.0f;
        c->g_sum[t] = sum;
    }
    for (uint32_t t = 0; t < CHUNK; t += LANES) {
        lanes_store(c->decay + t, lanes_exp(lanes_load(c->g_sum + t)));
    }
}

/* Fills a and p from the dot products of the chunk's rows. */
static void chunk_products(const delta_rows *rows, uint32_t first, uint32_t dk, chunk *c)
{
    const float *q = rows->q + first * rows->row_stride, *k = rows->k + first * rows->row_stride;
    for (uint32_t i = 0; i < dk; i++) {
        for (uint32_t t = 0; t < CHUNK; t++) {
            c->k_columns[i * CHUNK + t] = t < c->num_rows ? k[t * rows->row_stride + i] : 0.0f;
        }
    }
    for (uint32_t j = 0; j < CHUNK; j += LANES) {
        tile_operands o = {
            .a = k,
            .a_stride = rows->row_stride,
            .b = c->k_columns + j,
            .b_stride = CHUNK,
            .n = dk,
            .c = c->a[0] + j,
            .c_stride = CHUNK,
        };
        multiply(o, c->num_rows);
        o.a = q;
        o.c = c->p[0] + j;
        multiply(o, c->num_rows);
    }
    for (uint32_t i = 0; i < c->num_rows; i++) {
        lanes g_i = lanes_splat(c->g_sum[i]), beta = lanes_splat(c->beta[i]);
        for (uint32_t j = 0; j < CHUNK; j += LANES) {
            /* Above the diagonal the difference is positive and exp might overflow: 0 before exp. */
            lanes difference = lanes_min(lanes_sub(g_i, lanes_load(c->g_sum + j)), lanes_zero());
            lanes decay = lanes_exp(difference);
            lanes_store(c->p[i] + j, lanes_mul(lanes_load(c->p[i] + j), decay));
            lanes_store(c->a[i] + j, lanes_mul(lanes_mul(lanes_load(c->a[i] + j), decay), beta));
        }
    }
}

/* n = the solution of (I + A) n = beta (v - decay K S) for LANES columns, by forward substitution. */
static void solve(const delta_rows *rows, uint32_t first, uint32_t column, const chunk *c, const float *state,
                  uint32_t dk, uint32_t dv, float *n)
{
    multiply((tile_operands){.a = rows->k + first * rows->row_stride,
                             .a_stride = rows->row_stride,
                             .b = state + column,
                             .b_stride = dv,
                             .n = dk,
                             .c = n,
                             .c_stride = LANES},
             c->num_rows);
    for (uint32_t i = 0; i < c->num_rows; i++) {
        lanes v = lanes_load(rows->v + (first + i) * rows->row_stride + column);
        lanes x = lanes_fma(lanes_load(n + i * LANES), lanes_splat(-c->decay[i]), v);
        x = lanes_mul(lanes_splat(c->beta[i]), x);
        for (uint32_t j = 0; j < i; j++) {
            x = lanes_fma(lanes_splat(-c->a[i][j]), lanes_load(n + j * LANES), x);
        }
        lanes_store(n + i * LANES, x);
    }
}

static void write_outputs(const delta_rows *rows, uint32_t first, uint32_t column, const chunk *c,
                          const float *state, uint32_t dk, uint32_t dv, const float *n)
{
    float seen[CHUNK * LANES];
    multiply((tile_operands){.a = rows->q + first * rows->row_stride,
                             .a_stride = rows->row_stride,
                             .b = state + column,
                             .b_stride = dv,
                             .n = dk,
                             .c = seen,
                             .c_stride = LANES},
             c->num_rows);
    for (uint32_t i = 0; i < c->num_rows; i++) {
        lanes x = lanes_mul(lanes_load(seen + i * LANES), lanes_splat(c->decay[i]));
        for (uint32_t j = 0; j <= i; j++) {
            x = lanes_fma(lanes_splat(c->p[i][j]), lanes_load(n + j * LANES), x);
        }
        lanes_store(rows->o + (first + i) * rows->o_stride + column, x);
    }
}

/* k_columns already hold exp(G[n - 1] - G) K. */
static void update_state(const chunk *c, uint32_t column, uint32_t dk, uint32_t dv, const float *n,
                         float *state)
{
    lanes decay = lanes_splat(c->decay[c->num_rows - 1]);
    for (uint32_t i = 0; i < dk; i++) {
        float *s = state + (uint64_t)i * dv + column;
        lanes_store(s, lanes_mul(lanes_load(s), decay));
    }
    multiply((tile_operands){.a = c->k_columns,
                             .a_stride = CHUNK,
                             .b = n,
                             .b_stride = LANES,
                             .n = c->num_rows,
                             .accumulate = true,
                             .c = state + column,
                             .c_stride = dv},
             dk);
}

static void decay_key_columns(chunk *c, uint32_t dk)
{
    lanes last = lanes_splat(c->g_sum[c->num_rows - 1]);
    for (uint32_t t = 0; t < CHUNK; t += LANES) {
        lanes decay = lanes_exp(lanes_sub(last, lanes_load(c->g_sum + t)));
        for (uint32_t i = 0; i < dk; i++) {
            float *k = c->k_columns + i * CHUNK + t;
            lanes_store(k, lanes_mul(lanes_load(k), decay));
        }
    }
}

void MTLQ_NAME(delta_chunk)(const mtlq_call *call)
{
    const mtlq_delta_args *args = call->args;
    uint32_t dk = args->key_dim, dv = args->value_dim;
    uint64_t num_sequences = mtlq_rows(call, MTLQ_SEQUENCES), state_bytes = sizeof(float) * dk * dv;
    float *k_columns = call->scratch;

    uint64_t begin, end;
    mtlq_share(call, args->num_value_heads * num_sequences, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        delta_rows rows = delta_rows_of(call, item / num_sequences, item % num_sequences);
        if (!rows.old_state) {
            memset(rows.new_state, 0, state_bytes);
        }
        for (uint32_t column = 0; rows.old_state && column < dv; column += STRIPE) {
            replay(&rows, args, column, rows.new_state + column, dv);
        }
        for (uint32_t first = 0; first < rows.num_rows; first += CHUNK) {
            uint32_t left = rows.num_rows - first;
            chunk c = {.num_rows = left < CHUNK ? left : CHUNK, .k_columns = k_columns};
            chunk_gates(&rows, first, &c);
            chunk_products(&rows, first, dk, &c);
            decay_key_columns(&c, dk);
            for (uint32_t column = 0; column < dv; column += LANES) {
                float n[CHUNK * LANES];
                solve(&rows, first, column, &c, rows.new_state, dk, dv, n);
                write_outputs(&rows, first, column, &c, rows.new_state, dk, dv, n);
                update_state(&c, column, dk, dv, n, rows.new_state);
            }
        }
    }
}
