/* probe.c: what the machine gives at this moment, to put beside a timing. Build: cc -O3 -march=native. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define MAX_THREADS 64

typedef struct part {
    const uint64_t *data;
    uint64_t count;
    uint64_t sum;
} part;

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_part(void *argument)
{
    part *p = argument;
    uint64_t sums[8] = {0};
    for (uint64_t i = 0; i + 8 <= p->count; i += 8) {
        for (unsigned k = 0; k < 8; k++) {
            sums[k] += p->data[i + k];
        }
    }
    for (unsigned k = 0; k < 8; k++) {
        p->sum += sums[k];
    }
    return 0;
}

/* Bytes per second of plain linear reads by num_threads threads. */
double read_bandwidth(const void *data, uint64_t num_bytes, unsigned num_threads)
{
    pthread_t threads[MAX_THREADS];
    part parts[MAX_THREADS];
    uint64_t each = num_bytes / 8 / num_threads;
    double start = seconds(CLOCK_MONOTONIC);
    for (unsigned i = 0; i < num_threads; i++) {
        parts[i] = (part){(const uint64_t *)data + i * each, each, 0};
        pthread_create(&threads[i], 0, read_part, &parts[i]);
    }
    for (unsigned i = 0; i < num_threads; i++) {
        pthread_join(threads[i], 0);
    }
    return (double)num_bytes / (seconds(CLOCK_MONOTONIC) - start);
}

/* Multiply-adds per second of one thread in independent vpmaddubsw; 0 without AVX2. */
double byte_products(uint64_t repeats)
{
#ifdef __AVX2__
    __m256i sums[12], ones = _mm256_set1_epi8(1);
    for (unsigned i = 0; i < 12; i++) {
        sums[i] = ones;
    }
    double start = seconds(CLOCK_MONOTONIC);
    for (uint64_t r = 0; r < repeats; r++) {
#pragma GCC unroll 12
        for (unsigned i = 0; i < 12; i++) {
            sums[i] = _mm256_maddubs_epi16(sums[i], ones);
            __asm__ volatile("" : "+x"(sums[i]));
        }
    }
    return 12 * 32 * (double)repeats / (seconds(CLOCK_MONOTONIC) - start);
#else
    (void)repeats;
    return 0;
#endif
}
