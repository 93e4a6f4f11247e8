/* shim_test.c: the shim alone, with kernels of its own that show how the pool runs them.
 * Usage: shim_test NUM_WORKERS NUM_SUBMISSIONS. Prints what failed; exits 0 if nothing did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/cpu/kernel.h"
#include "../../shim/mtlq.h"

#define CHECK(condition) ((condition) ? (void)0 : complain(__LINE__, #condition))
#define NUM_ITEMS 1024u
#define NUM_STEPS 40u
#define PAGE 65536u

static int num_failures;

static void complain(int line, const char *condition)
{
    num_failures++;
    fprintf(stderr, "line %d: %s does not hold; last error: %s\n", line, condition,
            mtlq_last_error());
}

/* y[i] = x[n - 1 - i] + 1: reads what another worker wrote, so that a missing barrier shows. */
static void kernel_step(const mtlq_call *call)
{
    const uint32_t *x = call->buffers[0];
    uint32_t *y = call->buffers[1];
    for (uint32_t i = call->worker; i < NUM_ITEMS; i += call->num_workers)
        y[i] = x[NUM_ITEMS - 1 - i] + 1;
}

/* Every worker leaves its mark, all meet, every worker sees all marks; three times.
 * buffers[0]: marks u32[num_workers]; buffers[1]: errors u32[num_workers]. */
static void kernel_phases(const mtlq_call *call)
{
    uint32_t *marks = call->buffers[0];
    uint32_t *errors = call->buffers[1];
    for (uint32_t phase = 0; phase < 3; phase++) {
        marks[call->worker]++;
        mtlq_pool_sync(call);
        for (uint32_t i = 0; i < call->num_workers; i++)
            errors[call->worker] += marks[i] != marks[call->worker];
        mtlq_pool_sync(call);
    }
    memset(call->scratch, (int)call->worker, MTLQ_SCRATCH_BYTES / 64);
}

#define TABLE {{"step", 2, 0, kernel_step}, {"phases", 2, 0, kernel_phases}, {NULL, 0, 0, NULL}}
const mtlq_kernel mtlq_kernels_portable[] = TABLE;
const mtlq_kernel mtlq_kernels_avx2[] = TABLE;
const mtlq_kernel mtlq_kernels_avx512[] = TABLE;
const mtlq_kernel mtlq_kernels_neon[] = TABLE;

static mtlq_device *open_device(uint32_t num_workers)
{
    mtlq_device_desc desc = {.struct_size = sizeof desc, .num_threads = num_workers};
    mtlq_device *device;
    CHECK(mtlq_device_open("cpu", &desc, &device) == MTLQ_OK);
    return device;
}

static uint32_t *create_words(mtlq_device *device, uint32_t count, mtlq_buffer **buffer)
{
    void *contents;
    CHECK(mtlq_buffer_create(device, count * sizeof(uint32_t), buffer) == MTLQ_OK);
    CHECK(mtlq_buffer_contents(*buffer, &contents) == MTLQ_OK);
    return contents;
}

static mtlq_pipeline *create_pipeline(mtlq_device *device, const char *name)
{
    mtlq_library *library;
    mtlq_pipeline *pipeline;
    CHECK(mtlq_library_create(device, NULL, 0, &library) == MTLQ_OK);
    CHECK(mtlq_pipeline_create(library, name, NULL, 0, &pipeline) == MTLQ_OK);
    mtlq_library_free(library);
    return pipeline;
}

/* A chain of steps between two buffers, each waiting for the one before. */
static mtlq_plan *create_chain(mtlq_device *device, mtlq_buffer *const buffers[2], mtlq_pipeline *step)
{
    mtlq_dispatch dispatches[NUM_STEPS];
    mtlq_binding bindings[2 * NUM_STEPS];
    memset(dispatches, 0, sizeof dispatches);
    memset(bindings, 0, sizeof bindings);
    for (uint32_t i = 0; i < NUM_STEPS; i++) {
        dispatches[i].pipeline = mtlq_pipeline_id(step);
        dispatches[i].flags = MTLQ_BARRIER;
        dispatches[i].grid_buffer = MTLQ_NO_ID;
        dispatches[i].first_binding = 2 * i;
        dispatches[i].num_bindings = 2;
        bindings[2 * i].buffer = mtlq_buffer_id(buffers[i % 2]);
        bindings[2 * i + 1].buffer = mtlq_buffer_id(buffers[1 - i % 2]);
    }
    mtlq_plan_desc desc = {
        .struct_size = sizeof desc,
        .num_dispatches = NUM_STEPS,
        .num_bindings = 2 * NUM_STEPS,
        .dispatches = dispatches,
        .bindings = bindings,
    };
    mtlq_plan *plan;
    CHECK(mtlq_plan_create(device, &desc, &plan) == MTLQ_OK);
    return plan;
}

static void test_dependent_dispatches_run_in_order(mtlq_device *device, uint32_t num_submissions)
{
    mtlq_buffer *buffers[2];
    uint32_t *words = create_words(device, NUM_ITEMS, &buffers[0]);
    create_words(device, NUM_ITEMS, &buffers[1]);
    mtlq_pipeline *step = create_pipeline(device, "step");
    mtlq_plan *plan = create_chain(device, buffers, step);
    mtlq_plan *plans[2] = {plan, plan};
    uint64_t ticket, nanoseconds;
    for (uint32_t i = 0; i < num_submissions; i++)
        CHECK(mtlq_submit(device, plans, 2, NULL, 0, &ticket) == MTLQ_OK);
    CHECK(mtlq_wait(device, ticket, MTLQ_FOREVER) == MTLQ_OK);
    CHECK(mtlq_ticket_time(device, ticket, &nanoseconds) == MTLQ_OK && nanoseconds > 0);
    for (uint32_t i = 0; i < NUM_ITEMS; i++)
        CHECK(words[i] == 2 * NUM_STEPS * num_submissions);
    mtlq_buffer_free(buffers[0]); /* before the plan that uses it */
    mtlq_pipeline_free(step);
    mtlq_plan_free(plan);
    mtlq_buffer_free(buffers[1]);
}

static void test_workers_meet_inside_a_kernel(mtlq_device *device, uint32_t num_workers,
                                              uint32_t num_submissions)
{
    mtlq_buffer *buffers[2];
    uint32_t *marks = create_words(device, num_workers, &buffers[0]);
    uint32_t *errors = create_words(device, num_workers, &buffers[1]);
    mtlq_pipeline *pipeline = create_pipeline(device, "phases");
    mtlq_dispatch dispatch = {
        .pipeline = mtlq_pipeline_id(pipeline), .grid_buffer = MTLQ_NO_ID, .num_bindings = 2};
    mtlq_binding bindings[2] = {{mtlq_buffer_id(buffers[0]), 0, 0}, {mtlq_buffer_id(buffers[1]), 0, 0}};
    mtlq_encoder *encoder;
    CHECK(mtlq_encoder_create(device, &encoder) == MTLQ_OK);
    for (uint32_t i = 0; i < num_submissions; i++) {
        uint64_t ticket;
        CHECK(mtlq_encoder_dispatch(encoder, &dispatch, bindings, NULL) == MTLQ_OK);
        CHECK(mtlq_encoder_commit(encoder, &ticket) == MTLQ_OK);
    }
    for (uint32_t i = 0; i < num_workers; i++)
        CHECK(marks[i] == 3 * num_submissions && errors[i] == 0);
    mtlq_encoder_free(encoder);
    mtlq_pipeline_free(pipeline);
    mtlq_buffer_free(buffers[0]);
    mtlq_buffer_free(buffers[1]);
}

static void test_one_heap_page_shows_in_two_places(mtlq_device *device)
{
    mtlq_buffer *buffer;
    mtlq_heap *heap;
    void *view, *pages;
    CHECK(mtlq_sparse_create(device, 16 * PAGE, PAGE, &buffer) == MTLQ_OK);
    CHECK(mtlq_heap_create(device, 4 * PAGE, PAGE, &heap) == MTLQ_OK);
    CHECK(mtlq_buffer_contents(buffer, &view) == MTLQ_OK);
    CHECK(mtlq_heap_contents(heap, &pages) == MTLQ_OK);
    mtlq_map_op ops[2] = {
        {MTLQ_MAP, mtlq_buffer_id(buffer), mtlq_heap_id(heap), 0, 2, 3, 1},
        {MTLQ_MAP, mtlq_buffer_id(buffer), mtlq_heap_id(heap), 0, 9, 2, 2},
    };
    CHECK(mtlq_map(device, ops, 2) == MTLQ_OK);
    memset((char *)view + 2 * PAGE, 'x', PAGE);
    CHECK(((char *)view)[10 * PAGE + 17] == 'x');
    CHECK(((char *)view)[9 * PAGE] == 0);
    CHECK(((char *)pages)[4 * PAGE - 1] == 'x');
    CHECK(mtlq_heap_free(heap) == MTLQ_E_ARGUMENT);
    mtlq_buffer_free(buffer);
    CHECK(mtlq_heap_free(heap) == MTLQ_OK);
}

int main(int argc, char **argv)
{
    uint32_t num_workers = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    uint32_t num_submissions = argc > 2 ? (uint32_t)atoi(argv[2]) : 100;
    mtlq_device *device = open_device(num_workers);
    test_dependent_dispatches_run_in_order(device, num_submissions);
    test_workers_meet_inside_a_kernel(device, num_workers, num_submissions);
    test_one_heap_page_shows_in_two_places(device);
    mtlq_device_close(device);
    return num_failures != 0;
}
