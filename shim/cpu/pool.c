/* pool.c: a fixed set of threads that meet at one barrier: to start a job, between dependent
 * dispatches, inside kernels of two phases, and at the end.
 *
 * A worker that waits spins for a while, then sleeps in the operating system, so that an idle device
 * costs nothing. Waits are short while a model runs alone; but where other programs want the cores,
 * the worker waited for may not be running, and spinning only keeps it out. So a worker whose spinning
 * was in vain sleeps at once, and tries again now and then. */
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
#define SPIN_NANOSECONDS 200000u /* a few times what waking a sleeping thread costs */
#define WAITS_PER_TRIAL 32u
#define SPINS_PER_CLOCK 32u
#define CACHE_LINE 64

/* Whether it pays to spin in waits of one kind. */
typedef struct patience {
    bool pays;
    uint32_t num_waits; /* since it did not */
} patience;

typedef struct worker_state {
    _Alignas(CACHE_LINE) patience idle; /* for the next job */
    patience busy;                      /* for the others in a job */
} worker_state;

struct mtlq_pool {
    uint32_t num_workers;
    uint32_t num_threads; /* started; worker 0 has none */
    bool stopping;
    mtlq_job_fn run;
    void *job;
    uint8_t *scratch; /* [num_workers, MTLQ_SCRATCH_BYTES] */
    pthread_t *threads;
    worker_state *workers; /* [num_workers], each used by that worker alone */
    mtlq_park park;
    _Alignas(CACHE_LINE) atomic_uint num_arrived;
    _Alignas(CACHE_LINE) atomic_uint phase; /* counts the meetings */
    _Alignas(CACHE_LINE) atomic_uint num_parked;
};

typedef struct thread_argument {
    mtlq_pool *pool;
    uint32_t worker;
} thread_argument;

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

static bool has_passed(mtlq_pool *pool, uint32_t phase)
{
    for (uint32_t i = 0; i < SPINS_PER_CLOCK; i++) {
        if (atomic_load_explicit(&pool->phase, memory_order_acquire) != phase)
            return true;
        relax();
    }
    return false;
}

static void park(mtlq_pool *pool, uint32_t phase)
{
    atomic_fetch_add(&pool->num_parked, 1);
    while (atomic_load(&pool->phase) == phase)
        mtlq_park_while(&pool->park, &pool->phase, phase);
    atomic_fetch_sub(&pool->num_parked, 1);
}

static bool spin(mtlq_pool *pool, uint32_t phase)
{
    uint64_t started = now_nanoseconds();
    do
        if (has_passed(pool, phase))
            return true;
    while (now_nanoseconds() - started < SPIN_NANOSECONDS);
    return false;
}

static void wait_for(mtlq_pool *pool, uint32_t phase, patience *patience)
{
    if (has_passed(pool, phase))
        return;
    if (patience->pays || ++patience->num_waits % WAITS_PER_TRIAL == 0) {
        patience->pays = spin(pool, phase);
        if (patience->pays)
            return;
    }
    park(pool, phase);
}

static void meet(mtlq_pool *pool, patience *patience)
{
    if (pool->num_workers == 1)
        return;
    uint32_t phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add(&pool->num_arrived, 1) + 1 < pool->num_workers) {
        wait_for(pool, phase, patience);
        return;
    }
    atomic_store_explicit(&pool->num_arrived, 0, memory_order_relaxed);
    /* Sequentially consistent against num_parked: a sleeper is seen here, or sees the new phase. */
    atomic_store(&pool->phase, phase + 1);
    if (atomic_load(&pool->num_parked))
        mtlq_unpark_all(&pool->park, &pool->phase);
}

void mtlq_pool_sync(const mtlq_call *call)
{
    meet(call->pool, &call->pool->workers[call->worker].busy);
}

static void run_as(mtlq_pool *pool, uint32_t worker)
{
    mtlq_call call = {
        .worker = worker,
        .num_workers = pool->num_workers,
        .scratch = pool->scratch + (size_t)worker * MTLQ_SCRATCH_BYTES,
        .pool = pool,
    };
    pool->run(pool->job, &call);
    mtlq_pool_sync(&call);
}

static void *thread_main(void *argument)
{
    thread_argument self = *(thread_argument *)argument;
    free(argument);
    fesetenv(FE_DFL_ENV); /* the creator's rounding and denormal modes must not decide results */
    for (;;) {
        meet(self.pool, &self.pool->workers[self.worker].idle);
        if (self.pool->stopping)
            return NULL;
        run_as(self.pool, self.worker);
    }
}

static int start_thread(mtlq_pool *pool, const pthread_attr_t *attributes)
{
    thread_argument *argument = malloc(sizeof *argument);
    if (!argument)
        return -1;
    *argument = (thread_argument){pool, pool->num_threads + 1};
    pthread_t *thread = &pool->threads[pool->num_threads];
    int error = pthread_create(thread, attributes, thread_main, argument);
    if (error)
        free(argument);
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
    free(pool->workers);
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
    pool->workers = aligned_alloc(CACHE_LINE, num_workers * sizeof *pool->workers);
    void *scratch = mmap(NULL, (size_t)num_workers * MTLQ_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool->scratch = scratch == MAP_FAILED ? NULL : scratch;
    if (!pool->threads || !pool->workers || !pool->scratch) {
        free_pool(pool);
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: no memory for %u workers", num_workers);
    }
    for (uint32_t i = 0; i < num_workers; i++)
        pool->workers[i] = (worker_state){.idle = {true, 0}, .busy = {true, 0}};
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
        meet(pool, &pool->workers[0].idle);
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
    meet(pool, &pool->workers[0].idle);
    run_as(pool, 0);
    fesetenv(&environment);
}
