/* smoke.c: a C program that uses libmtlq through mtlq.h alone: kernels, sparse memory, errors.
 * Usage: smoke ISA... Runs the same work on each; prints what failed, and exits 0 if nothing did. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../kernels/args.h"
#include "../../shim/mtlq.h"

#define ROWS 5u
#define DIM 256u
#define PAGE 65536u
#define CHECK(condition) ((condition) ? (void)0 : complain(__LINE__, #condition))

static int num_failures;

static void complain(int line, const char *condition)
{
    num_failures++;
    fprintf(stderr, "line %d: %s does not hold; last error: %s\n", line, condition,
            mtlq_last_error());
}

static void *create(mtlq_device *device, uint64_t num_bytes, mtlq_buffer **buffer)
{
    void *contents = NULL;
    CHECK(mtlq_buffer_create(device, num_bytes, buffer) == MTLQ_OK);
    CHECK(mtlq_buffer_contents(*buffer, &contents) == MTLQ_OK);
    return contents;
}

/* A sparse buffer whose first and third page are the same page of a heap. */
static void *create_aliased(mtlq_device *device, mtlq_buffer **buffer, mtlq_heap **heap)
{
    void *contents = NULL;
    CHECK(mtlq_sparse_create(device, 4 * PAGE, PAGE, buffer) == MTLQ_OK);
    CHECK(mtlq_heap_create(device, 2 * PAGE, PAGE, heap) == MTLQ_OK);
    mtlq_map_op ops[2] = {
        {MTLQ_MAP, mtlq_buffer_id(*buffer), mtlq_heap_id(*heap), 0, 0, 1, 1},
        {MTLQ_MAP, mtlq_buffer_id(*buffer), mtlq_heap_id(*heap), 0, 2, 1, 1},
    };
    CHECK(mtlq_map(device, ops, 2) == MTLQ_OK);
    CHECK(mtlq_buffer_contents(*buffer, &contents) == MTLQ_OK);
    return contents;
}

static void encode(mtlq_encoder *encoder, mtlq_library *library, const char *name,
                   mtlq_buffer *const *buffers, const void *args, uint32_t args_bytes)
{
    mtlq_pipeline *pipeline = NULL;
    mtlq_binding bindings[4] = {{0}};
    CHECK(mtlq_pipeline_create(library, name, NULL, 0, &pipeline) == MTLQ_OK);
    for (int i = 0; i < 4; i++)
        bindings[i].buffer = mtlq_buffer_id(buffers[i]);
    mtlq_dispatch dispatch = {
        .pipeline = mtlq_pipeline_id(pipeline),
        .flags = MTLQ_BARRIER,
        .grid_buffer = MTLQ_NO_ID,
        .num_bindings = 4,
        .args_bytes = args_bytes,
    };
    CHECK(mtlq_encoder_dispatch(encoder, &dispatch, bindings, args) == MTLQ_OK);
}

/* normed[ROWS, DIM] = rmsnorm(x) in reversed order of rows. */
static void run(const char *isa, float normed[ROWS][DIM])
{
    mtlq_device_desc desc = {.struct_size = sizeof desc, .num_threads = 3, .isa = isa};
    mtlq_device *device = NULL;
    if (mtlq_device_open("cpu", &desc, &device)) {
        complain(__LINE__, isa);
        return;
    }
    mtlq_buffer *header, *indices, *x, *weight, *gathered, *y;
    mtlq_heap *heap;
    mtlq_batch_header *batch = create(device, sizeof *batch, &header);
    int32_t *order = create(device, ROWS * sizeof *order, &indices);
    float *values = create(device, ROWS * DIM * sizeof *values, &x);
    float *weights = create(device, DIM * sizeof *weights, &weight);
    create(device, ROWS * DIM * sizeof(float), &gathered);
    char *pages = create_aliased(device, &y, &heap);
    batch->num_rows = ROWS;
    for (uint32_t i = 0; i < ROWS; i++)
        order[i] = (int32_t)(ROWS - 1 - i);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        values[i] = (float)((i * 2654435761u) >> 16) / 32768.0f - 1.0f;
    for (uint32_t i = 0; i < DIM; i++)
        weights[i] = 1.0f + (float)i / DIM;
    mtlq_library *library = NULL;
    mtlq_encoder *encoder = NULL;
    uint64_t ticket = 0;
    mtlq_gather_args gather = {DIM, MTLQ_ROWS};
    mtlq_rmsnorm_args rmsnorm = {DIM, MTLQ_ROWS, 1e-6f};
    CHECK(mtlq_library_create(device, NULL, 0, &library) == MTLQ_OK);
    CHECK(mtlq_encoder_create(device, &encoder) == MTLQ_OK);
    encode(encoder, library, "gather", (mtlq_buffer *[]){header, indices, x, gathered}, &gather,
           sizeof gather);
    encode(encoder, library, "rmsnorm", (mtlq_buffer *[]){header, gathered, weight, y}, &rmsnorm,
           sizeof rmsnorm);
    CHECK(mtlq_encoder_commit(encoder, &ticket) == MTLQ_OK);
    CHECK(mtlq_wait(device, ticket, MTLQ_FOREVER) == MTLQ_OK);
    memcpy(normed, pages + 2 * PAGE, ROWS * DIM * sizeof(float));
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *row = values + (ROWS - 1 - i) * DIM;
        double sum = 0;
        for (uint32_t j = 0; j < DIM; j++)
            sum += (double)row[j] * row[j];
        for (uint32_t j = 0; j < DIM; j++)
            CHECK(fabs(normed[i][j] - row[j] / sqrt(sum / DIM + 1e-6) * weights[j]) < 1e-5);
    }
    mtlq_device_close(device);
    mtlq_encoder_free(encoder);
    mtlq_library_free(library);
    CHECK(mtlq_heap_free(heap) == MTLQ_E_ARGUMENT);
    mtlq_buffer *buffers[] = {header, indices, x, weight, gathered, y};
    for (int i = 0; i < 6; i++)
        mtlq_buffer_free(buffers[i]);
    CHECK(mtlq_heap_free(heap) == MTLQ_OK);
}

int main(int argc, char **argv)
{
    static float first[ROWS][DIM], other[ROWS][DIM];
    CHECK(mtlq_abi_version() >> 16 == MTLQ_ABI_MAJOR);
    for (int i = 1; i < argc; i++) {
        run(argv[i], i == 1 ? first : other);
        if (i > 1)
            CHECK(!memcmp(first, other, sizeof first)); /* the same bits on every instruction set */
    }
    printf("%d failures\n", num_failures);
    return num_failures != 0;
}
