/* pool.c: a fixed set of threads that meet at one barrier: to start a job, between dependent
 * dispatches, inside kernels of two phases, and at the end. A worker that waits spins for a while, for
 * a wait is short while a model runs, then sleeps in the kernel, so that an idle device costs nothing. */
#include "pool.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../device.h"
#include "park.h"

#define STACK_BYTES (2u << 20)
#define SPIN_NANOSECONDS 100000u /* a few times what waking a sleeping thread costs */
#define SPINS_PER_CLOCK 32u
#define CACHE_LINE 64

struct mtlq_pool {
    uint32_t num_workers;
    uint32_t num_threads; /* started; worker 0 has none */
    bool stopping;
    mtlq_job_fn run;
    void *job;
    uint8_t *scratch; /* [num_workers, MTLQ_SCRATCH_BYTES] */
    pthread_t *threads;
    mtlq_park park;
    _Alignas(CACHE_LINE) atomic_uint num_arrived;
    _Alignas(CACHE_LINE) atomic_uint phase; /* counts the meetings */
    _Alignas(CACHE_LINE) atomic_uint num_parked;
};

typedef struct worker {
    mtlq_pool *pool;
    uint32_t index;
} worker;

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is a no-op on most cores */
#endif
}

static uint64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether the phase passed while spinning. */
static bool spin(mtlq_pool *pool, uint32_t phase)
{
    uint64_t deadline = 0;
    for (;;) {
        for (uint32_t i = 0; i < SPINS_PER_CLOCK; i++) {
            if (atomic_load_explicit(&pool->phase, memory_order_acquire) != phase)
                return true;
            relax();
        }
        uint64_t now = now_nanoseconds();
        if (!deadline)
            deadline = now + SPIN_NANOSECONDS;
        else if (now > deadline)
            return false;
    }
}

static void meet(mtlq_pool *pool)
{
    if (pool->num_workers == 1)
        return;
    uint32_t phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add(&pool->num_arrived, 1) + 1 == pool->num_workers) {
        atomic_store_explicit(&pool->num_arrived, 0, memory_order_relaxed);
        /* Sequentially consistent against num_parked below: a sleeper is seen here or sees the phase. */
        atomic_store(&pool->phase, phase + 1);
        if (atomic_load(&pool->num_parked))
            mtlq_unpark_all(&pool->park, &pool->phase);
        return;
    }
    if (spin(pool, phase))
        return;
    atomic_fetch_add(&pool->num_parked, 1);
    while (atomic_load(&pool->phase) == phase)
        mtlq_park_while(&pool->park, &pool->phase, phase);
    atomic_fetch_sub(&pool->num_parked, 1);
}

void mtlq_pool_sync(const mtlq_call *call)
{
    meet(call->pool);
}

static void run_as(mtlq_pool *pool, uint32_t index)
{
    mtlq_call call = {
        .worker = index,
        .num_workers = pool->num_workers,
        .scratch = pool->scratch + (size_t)index * MTLQ_SCRATCH_BYTES,
        .pool = pool,
    };
    pool->run(pool->job, &call);
}

static void *worker_main(void *argument)
{
    worker self = *(worker *)argument;
    free(argument);
    fesetenv(FE_DFL_ENV); /* the creator's rounding and denormal modes must not decide results */
    for (;;) {
        meet(self.pool);
        if (self.pool->stopping)
            return NULL;
        run_as(self.pool, self.index);
        meet(self.pool);
    }
}

static int start_thread(mtlq_pool *pool, const pthread_attr_t *attributes)
{
    worker *self = malloc(sizeof *self);
    if (!self)
        return -1;
    *self = (worker){pool, pool->num_threads + 1};
    int error = pthread_create(&pool->threads[pool->num_threads], attributes, worker_main, self);
    if (error)
        free(self);
    else
        pool->num_threads++;
    return error;
}

/* Signals are left to the threads of the program. */
static int start_threads(mtlq_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return -1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (!error && pool->num_threads + 1 < pool->num_workers)
        error = start_thread(pool, &attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static void free_pool(mtlq_pool *pool)
{
    if (pool->scratch)
        munmap(pool->scratch, (size_t)pool->num_workers * MTLQ_SCRATCH_BYTES);
    mtlq_park_destroy(&pool->park);
    free(pool->threads);
    free(pool);
}

int32_t mtlq_pool_create(uint32_t num_workers, mtlq_pool **out)
{
    mtlq_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: no memory for the thread pool");
    memset(pool, 0, sizeof *pool);
    pool->num_workers = num_workers;
    mtlq_park_init(&pool->park);
    pool->threads = calloc(num_workers, sizeof *pool->threads);
    void *scratch = mmap(NULL, (size_t)num_workers * MTLQ_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool->scratch = scratch == MAP_FAILED ? NULL : scratch;
    if (!pool->threads || !pool->scratch) {
        free_pool(pool);
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: no memory for %u workers", num_workers);
    }
    if (start_threads(pool)) {
        uint32_t num_started = pool->num_threads;
        atomic_fetch_add(&pool->num_arrived, num_workers - 1 - num_started); /* for the missing ones */
        mtlq_pool_destroy(pool, true);
        return mtlq_fail(MTLQ_E_LIMIT,
                         "device_open: the system started %u of %u threads; ask for fewer threads, or "
                         "raise ulimit -u",
                         num_started, num_workers - 1);
    }
    *out = pool;
    return MTLQ_OK;
}

void mtlq_pool_destroy(mtlq_pool *pool, int joinable)
{
    if (joinable) {
        pool->stopping = true;
        meet(pool);
        for (uint32_t i = 0; i < pool->num_threads; i++)
            pthread_join(pool->threads[i], NULL);
    }
    free_pool(pool);
}

uint32_t mtlq_pool_num_workers(const mtlq_pool *pool)
{
    return pool->num_workers;
}

void mtlq_pool_run(mtlq_pool *pool, mtlq_job_fn run, void *job)
{
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    pool->run = run;
    pool->job = job;
    meet(pool);
    run_as(pool, 0);
    meet(pool);
    fesetenv(&environment);
}
