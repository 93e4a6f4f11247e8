/* cpu.c: the cpu device. Every worker walks the same plans and runs each kernel with its own index;
 * they meet where a dispatch depends on earlier ones. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../device.h"
#include "host.h"
#include "pages.h"
#include "pool.h"

#define MAX_THREADS 1024u
#define MAX_BUFFER_BYTES (1ull << 46) /* of a 47-bit address space */
#define NUM_TIMED_TICKETS 64u

typedef struct cpu_device {
    const mtlq_isa *isa;
    mtlq_pool *pool;
    pid_t process; /* whose threads the pool has */
    atomic_ullong last_ticket;
    atomic_ullong ticket_nanoseconds[NUM_TIMED_TICKETS];
} cpu_device;

static uint64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- device -------------------------------------------------------------------------------- */

static int32_t cpu_open(mtlq_device *device, const mtlq_device_desc *desc)
{
    if (desc->num_threads > MAX_THREADS)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: %u threads, at most %u", desc->num_threads,
                         MAX_THREADS);
    const mtlq_isa *isa = mtlq_isa_find(desc->isa);
    if (!isa) {
        char names[64];
        mtlq_isa_list(names, sizeof names);
        return mtlq_fail(MTLQ_E_UNSUPPORTED, "instruction set \"%.20s\": this machine runs %s",
                         desc->isa, names);
    }
    cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: out of memory");
    uint32_t num_threads = desc->num_threads ? desc->num_threads : mtlq_host_num_cores();
    if (num_threads > MAX_THREADS)
        num_threads = MAX_THREADS;
    int32_t status = mtlq_pool_create(num_threads, &cpu->pool);
    if (status) {
        free(cpu);
        return status;
    }
    cpu->isa = isa;
    cpu->process = getpid();
    device->state = cpu;
    device->max_mappings = mtlq_host_max_mappings();
    device->page_bytes = mtlq_host_page_bytes();
    device->max_buffer_bytes = MAX_BUFFER_BYTES;
    return MTLQ_OK;
}

static void cpu_close(mtlq_device *device)
{
    cpu_device *cpu = device->state;
    mtlq_pool_destroy(cpu->pool, cpu->process == getpid());
    free(cpu);
}

static void cpu_get_info(const mtlq_device *device, mtlq_device_info *info)
{
    static const uint32_t page_bytes[] = {16u << 10, 64u << 10, 256u << 10};
    const cpu_device *cpu = device->state;
    info->num_threads = mtlq_pool_num_workers(cpu->pool);
    mtlq_host_name(info->name, sizeof info->name);
    strncpy(info->isa, cpu->isa->name, sizeof info->isa - 1);
    info->memory_bytes = mtlq_host_memory_bytes();
    info->max_buffer_bytes = device->max_buffer_bytes;
    info->wrap_alignment_bytes = 1;
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof page_bytes / sizeof page_bytes[0]; i++)
        if (page_bytes[i] % device->page_bytes == 0)
            info->sparse_page_bytes[count++] = page_bytes[i];
    info->max_mappings = device->max_mappings;
}

/* ---- kernels ------------------------------------------------------------------------------- */

static int32_t cpu_library_create(mtlq_library *library, const char *source, uint64_t num_bytes)
{
    (void)library;
    if (source || num_bytes)
        return mtlq_fail(MTLQ_E_UNSUPPORTED,
                         "library_create: the cpu device compiles no source; its kernels are built in");
    return MTLQ_OK;
}

static int32_t cpu_pipeline_create(mtlq_pipeline *pipeline, const char *name,
                                   const mtlq_constant *constants, uint32_t num_constants)
{
    (void)constants;
    const cpu_device *cpu = pipeline->object.device->state;
    if (num_constants)
        return mtlq_fail(MTLQ_E_UNSUPPORTED,
                         "pipeline_create: the kernels of the cpu device take no constants");
    for (const mtlq_kernel *kernel = cpu->isa->kernels; kernel->name; kernel++) {
        if (strcmp(name, kernel->name))
            continue;
        pipeline->kernel = kernel;
        return MTLQ_OK;
    }
    return mtlq_fail(MTLQ_E_NOT_FOUND, "no %s kernel \"%.40s\"", cpu->isa->name, name);
}

/* Kernels are built in, and a library has nothing of its own. */
static void cpu_pipeline_free(mtlq_pipeline *pipeline)
{
    (void)pipeline;
}

static void cpu_library_free(mtlq_library *library)
{
    (void)library;
}

static int32_t cpu_check_dispatch(const mtlq_pipeline *pipeline, const mtlq_dispatch *dispatch,
                                  uint32_t index)
{
    const mtlq_kernel *kernel = pipeline->kernel;
    if (dispatch->num_bindings != kernel->num_bindings || dispatch->args_bytes != kernel->args_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "dispatch %u: %u bindings and %u argument bytes, %s takes %u and %u", index,
                         dispatch->num_bindings, dispatch->args_bytes, kernel->name,
                         kernel->num_bindings, kernel->args_bytes);
    return MTLQ_OK;
}

/* ---- submission ---------------------------------------------------------------------------- */

typedef struct submission {
    mtlq_plan *const *plans;
    uint32_t num_plans;
} submission;

/* Worker 0's time from each dispatch's start to the next one's, when all had finished it. */
static void add_time(mtlq_plan *plan, uint32_t index, uint64_t *started)
{
    uint64_t now = now_nanoseconds();
    plan->nanoseconds[index] += now - *started;
    *started = now;
}

static void run_plan(mtlq_plan *plan, mtlq_call *call)
{
    bool timed = plan->nanoseconds && call->worker == 0;
    uint64_t started = timed ? now_nanoseconds() : 0;
    for (uint32_t i = 0; i < plan->num_dispatches; i++) {
        const mtlq_dispatch *dispatch = &plan->dispatches[i];
        const mtlq_kernel *kernel = plan->pipelines[i]->kernel;
        if (dispatch->flags & MTLQ_BARRIER && !plan->nanoseconds)
            mtlq_pool_sync(call);
        call->args = plan->args + dispatch->args_offset;
        call->buffers = plan->addresses + dispatch->first_binding;
        kernel->run(call);
        if (plan->nanoseconds)
            mtlq_pool_sync(call);
        if (timed)
            add_time(plan, i, &started);
    }
}

static void run_submission(void *job, mtlq_call *call)
{
    const submission *work = job;
    for (uint32_t i = 0; i < work->num_plans; i++) {
        if (i > 0)
            mtlq_pool_sync(call);
        run_plan(work->plans[i], call);
    }
}

static int32_t cpu_submit(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                          uint64_t *ticket)
{
    cpu_device *cpu = device->state;
    if (cpu->process != getpid())
        return mtlq_fail(MTLQ_E_LOST,
                         "submit: the device was opened before a fork; open one in this process");
    submission work = {plans, num_plans};
    uint64_t started = now_nanoseconds();
    mtlq_pool_run(cpu->pool, run_submission, &work);
    uint64_t number = atomic_load(&cpu->last_ticket) + 1;
    atomic_store(&cpu->ticket_nanoseconds[number % NUM_TIMED_TICKETS], now_nanoseconds() - started);
    atomic_store(&cpu->last_ticket, number);
    *ticket = number;
    return MTLQ_OK;
}

/* A ticket is given out when its work is done. */
static int32_t cpu_wait(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds)
{
    (void)timeout_nanoseconds;
    cpu_device *cpu = device->state;
    if (!ticket || ticket > atomic_load(&cpu->last_ticket))
        return mtlq_fail(MTLQ_E_NOT_FOUND, "wait: no ticket %llu", (unsigned long long)ticket);
    return MTLQ_OK;
}

static int32_t cpu_ticket_time(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds)
{
    cpu_device *cpu = device->state;
    uint64_t last = atomic_load(&cpu->last_ticket);
    if (!ticket || ticket > last || last - ticket >= NUM_TIMED_TICKETS)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "ticket_time: %llu is not among the last %u tickets",
                         (unsigned long long)ticket, NUM_TIMED_TICKETS);
    *nanoseconds = atomic_load(&cpu->ticket_nanoseconds[ticket % NUM_TIMED_TICKETS]);
    return MTLQ_OK;
}

const mtlq_backend mtlq_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .get_info = cpu_get_info,
    .buffer_create = mtlq_pages_buffer_create,
    .buffer_free = mtlq_pages_buffer_free,
    .heap_create = mtlq_pages_heap_create,
    .heap_free = mtlq_pages_heap_free,
    .map = mtlq_pages_map,
    .library_create = cpu_library_create,
    .library_free = cpu_library_free,
    .pipeline_create = cpu_pipeline_create,
    .pipeline_free = cpu_pipeline_free,
    .check_dispatch = cpu_check_dispatch,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .ticket_time = cpu_ticket_time,
};
