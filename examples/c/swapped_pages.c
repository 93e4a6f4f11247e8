/* swapped_pages.c: two pages of a heap, seen in swapped order by a kernel.
 *
 *   cc swapped_pages.c $(pkg-config --cflags --libs mtlq) -lm && ./a.out
 *
 * The host writes a row of floats into each page of the heap. The sparse buffer shows page 1 before
 * page 0, so rmsnorm, which reads the buffer, normalises the rows in swapped order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mtlq.h>
#include <mtlq_args.h>

#define ROWS 2u
#define RESERVED_PAGES 1024u /* addresses only: two pages of memory stand behind them */
#define EPS 1e-6f
#define MAX_ERROR 1e-5

/* Every call of the library returns a status; mtlq_last_error() has the sentence for it. */
#define TRY(call)                                                                                       \
    do {                                                                                                \
        int32_t status_ = (call);                                                                       \
        if (status_ != MTLQ_OK)                                                                         \
            return status_;                                                                             \
    } while (0)

/* All handles start as NULL and freeing NULL does nothing: one function can free any part of them. */
typedef struct program {
    mtlq_device *device;
    mtlq_library *library;
    mtlq_pipeline *rmsnorm;
    mtlq_heap *heap;
    mtlq_buffer *header, *x, *weight, *y; /* the kernel's bindings, in the order of mtlq_args.h */
    mtlq_plan *plan;
    uint32_t page_bytes;
    uint32_t dim; /* floats of a page */
} program;

static int32_t open_device(program *p)
{
    mtlq_device_info info = {.struct_size = sizeof info};
    TRY(mtlq_device_open("cpu", NULL, &p->device));
    TRY(mtlq_device_get_info(p->device, &info));
    p->page_bytes = info.sparse_page_bytes[0];
    p->dim = p->page_bytes / sizeof(float);
    printf("%s, %s kernels, pages of %u bytes\n", info.name, info.isa, p->page_bytes);
    TRY(mtlq_library_create(p->device, NULL, 0, &p->library));
    return mtlq_pipeline_create(p->library, "rmsnorm", NULL, 0, &p->rmsnorm);
}

static int32_t map_swapped(program *p)
{
    uint64_t num_bytes = (uint64_t)RESERVED_PAGES * p->page_bytes;
    TRY(mtlq_sparse_create(p->device, num_bytes, p->page_bytes, &p->x));
    TRY(mtlq_heap_create(p->device, (uint64_t)ROWS * p->page_bytes, p->page_bytes, &p->heap));
    mtlq_map_op ops[ROWS];
    for (uint32_t page = 0; page < ROWS; page++)
        ops[page] = (mtlq_map_op){
            .kind = MTLQ_MAP,
            .buffer = mtlq_buffer_id(p->x),
            .heap = mtlq_heap_id(p->heap),
            .page = page,
            .heap_page = ROWS - 1 - page,
            .num_pages = 1,
        };
    return mtlq_map(p->device, ops, ROWS);
}

/* Row r of the heap is r + 1, r + 2, ..; the weights are 1. Also shows that the memory is the same. */
static int32_t fill(program *p)
{
    void *header, *rows, *seen, *weight;
    TRY(mtlq_buffer_create(p->device, sizeof(mtlq_batch_header), &p->header));
    TRY(mtlq_buffer_create(p->device, p->page_bytes, &p->weight));
    TRY(mtlq_buffer_create(p->device, (uint64_t)ROWS * p->page_bytes, &p->y));
    TRY(mtlq_buffer_contents(p->header, &header));
    TRY(mtlq_buffer_contents(p->weight, &weight));
    TRY(mtlq_buffer_contents(p->x, &seen));
    TRY(mtlq_heap_contents(p->heap, &rows));
    ((mtlq_batch_header *)header)->num_rows = ROWS;
    for (uint32_t i = 0; i < p->dim; i++) {
        ((float *)weight)[i] = 1.0f;
        for (uint32_t row = 0; row < ROWS; row++)
            ((float *)rows)[row * p->dim + i] = (float)(row + 1 + i);
    }
    printf("the heap's rows begin with %g and %g, the buffer's with %g and %g\n", *(float *)rows,
           ((float *)rows)[p->dim], *(float *)seen, ((float *)seen)[p->dim]);
    return MTLQ_OK;
}

/* A plan is made once and may be submitted any number of times. */
static int32_t run(program *p)
{
    mtlq_rmsnorm_args args = {.dim = p->dim, .rows = MTLQ_ROWS, .eps = EPS};
    mtlq_binding bindings[] = {
        {.buffer = mtlq_buffer_id(p->header)},
        {.buffer = mtlq_buffer_id(p->x)},
        {.buffer = mtlq_buffer_id(p->weight)},
        {.buffer = mtlq_buffer_id(p->y)},
    };
    mtlq_dispatch dispatch = {
        .pipeline = mtlq_pipeline_id(p->rmsnorm),
        .grid_buffer = MTLQ_NO_ID,
        .num_bindings = 4,
        .args_bytes = sizeof args,
    };
    mtlq_plan_desc desc = {
        .struct_size = sizeof desc,
        .num_dispatches = 1,
        .num_bindings = 4,
        .num_args_bytes = sizeof args,
        .dispatches = &dispatch,
        .bindings = bindings,
        .args = &args,
    };
    uint64_t ticket;
    TRY(mtlq_plan_create(p->device, &desc, &p->plan));
    TRY(mtlq_submit(p->device, &p->plan, 1, NULL, 0, &ticket));
    return mtlq_wait(p->device, ticket, MTLQ_FOREVER);
}

/* The largest difference from x / sqrt(mean(x^2) + eps), where row r of y is row ROWS - 1 - r. */
static int32_t read_back(program *p, double *error)
{
    void *contents;
    TRY(mtlq_buffer_contents(p->y, &contents));
    *error = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        const float *y = (const float *)contents + row * p->dim;
        double first = ROWS - row, sum = 0;
        for (uint32_t i = 0; i < p->dim; i++)
            sum += (first + i) * (first + i);
        for (uint32_t i = 0; i < p->dim; i++)
            *error = fmax(*error, fabs(y[i] - (first + i) / sqrt(sum / p->dim + EPS)));
    }
    return MTLQ_OK;
}

/* In any order, but for the heap, which stays while a buffer maps its pages or a plan has that buffer. */
static int32_t free_all(program *p)
{
    mtlq_plan_free(p->plan);
    mtlq_buffer *buffers[] = {p->header, p->x, p->weight, p->y};
    for (uint32_t i = 0; i < 4; i++)
        mtlq_buffer_free(buffers[i]);
    mtlq_pipeline_free(p->rmsnorm);
    mtlq_library_free(p->library);
    int32_t status = mtlq_heap_free(p->heap);
    mtlq_device_close(p->device);
    return status;
}

int main(void)
{
    uint32_t version = mtlq_abi_version(), wanted = MTLQ_ABI_MAJOR << 16 | MTLQ_ABI_MINOR;
    if (version >> 16 != wanted >> 16 || version < wanted) {
        fprintf(stderr, "libmtlq has ABI %x, this program needs %x\n", version, wanted);
        return EXIT_FAILURE;
    }
    program p = {0};
    double error = INFINITY;
    int32_t (*const steps[])(program *) = {open_device, map_swapped, fill, run};
    int32_t status = MTLQ_OK;
    for (uint32_t i = 0; i < 4 && !status; i++)
        status = steps[i](&p);
    if (!status)
        status = read_back(&p, &error);
    if (status)
        fprintf(stderr, "status %d: %s\n", status, mtlq_last_error());
    if (free_all(&p) != MTLQ_OK)
        fprintf(stderr, "%s\n", mtlq_last_error());
    if (!status)
        printf("rmsnorm of the buffer's rows: largest error %.1e\n", error);
    return error < MAX_ERROR ? EXIT_SUCCESS : EXIT_FAILURE;
}
