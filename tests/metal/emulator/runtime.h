/* runtime.h: what a translated kernel asks of the fibre runtime, and how a dispatch is started.
 * Plain C. */
#ifndef METAL_RUNTIME_H
#define METAL_RUNTIME_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One per fibre, a "GPU thread". */
typedef struct metal_thread {
    void *buffers[31];
    uint32_t position_in_grid[3], position_in_group[3], group_position[3];
    uint32_t threads_per_grid[3], threads_per_group[3], groups_per_grid[3];
    uint32_t index_in_group, lane, simdgroup, num_simdgroups;
} metal_thread;

typedef void (*metal_entry)(const metal_thread *thread);

/* ---- called by kernels. `line` is the line of the .metal text, `operation` tells operations
 * apart. SIMD operations want all 32 lanes: stricter than Metal, and what the kernels keep to.
 * ---- */

/* All 32 lanes bring `size` bytes, at most METAL_SLOT_BYTES; returns 32 slots of that size. */
#define METAL_SLOT_BYTES 64
void *metal_exchange(const void *value, uint32_t size, int line, int operation);
/* As metal_exchange; the last lane lets `reduce` fill a result of METAL_RESULT_BYTES at most. */
#define METAL_RESULT_BYTES 256
typedef void (*metal_reduce)(const void *slots, void *result);
void *metal_collect(const void *value, uint32_t size, int line, int operation, metal_reduce reduce);
uint32_t metal_lane(void);
void metal_threadgroup_barrier(int line);
void metal_simdgroup_barrier(int line);
/* The block of a threadgroup variable: one for each threadgroup and key, filled with 0xFF (NaN). */
void *metal_threadgroup_memory(const void *key, uint32_t num_bytes);

/* ---- called by hosts; the nvcc route (cuda/launch.cu) has the same functions ---- */

typedef struct metal_launch {
    metal_entry entry;
    uint32_t groups[3], threads[3];
    void *buffers[31];
    /* 0: threads take turns. Odd: one SIMD group runs as far ahead as it can. Even: any ready
     * thread. Seeds other than 0 also walk the threadgroups backwards. */
    uint64_t seed;
} metal_launch;

#define METAL_EXPORT __attribute__((visibility("default")))
/* 0, or 1 and metal_error(). Not reentrant. */
METAL_EXPORT int metal_dispatch(const metal_launch *launch);
METAL_EXPORT const char *metal_error(void);
/* Memory that kernels may use, of exactly this size. */
METAL_EXPORT void *metal_allocate(uint64_t num_bytes);
METAL_EXPORT void metal_free(void *memory);
METAL_EXPORT void metal_copy(void *target, const void *source, uint64_t num_bytes);

#ifdef __cplusplus
}
#endif
#endif
