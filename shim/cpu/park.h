/* park.h: sleeping in the operating system until a word changes. */
#ifndef MTLQ_PARK_H
#define MTLQ_PARK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* MTLQ_NO_FUTEX builds on Linux what other systems use. */
#if defined(__linux__) && !defined(MTLQ_NO_FUTEX)

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct mtlq_park {
    char unused;
} mtlq_park;

static inline void mtlq_park_init(mtlq_park *park)
{
    park->unused = 0;
}

static inline void mtlq_park_destroy(mtlq_park *park)
{
    (void)park;
}

/* Returns when woken, at once if the word is no longer value, or for no reason. */
static inline void mtlq_park_while(mtlq_park *park, atomic_uint *word, uint32_t value)
{
    (void)park;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Call after the word has changed. */
static inline void mtlq_unpark_all(mtlq_park *park, atomic_uint *word)
{
    (void)park;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

typedef struct mtlq_park {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} mtlq_park;

static inline void mtlq_park_init(mtlq_park *park)
{
    pthread_mutex_init(&park->mutex, NULL);
    pthread_cond_init(&park->changed, NULL);
}

static inline void mtlq_park_destroy(mtlq_park *park)
{
    pthread_cond_destroy(&park->changed);
    pthread_mutex_destroy(&park->mutex);
}

/* Returns when woken, at once if the word is no longer value, or for no reason. */
static inline void mtlq_park_while(mtlq_park *park, atomic_uint *word, uint32_t value)
{
    pthread_mutex_lock(&park->mutex);
    if (atomic_load(word) == value)
        pthread_cond_wait(&park->changed, &park->mutex);
    pthread_mutex_unlock(&park->mutex);
}

/* Call after the word has changed. */
static inline void mtlq_unpark_all(mtlq_park *park, atomic_uint *word)
{
    (void)word;
    pthread_mutex_lock(&park->mutex);
    pthread_cond_broadcast(&park->changed);
    pthread_mutex_unlock(&park->mutex);
}

#endif
#endif
