/* kernel.h: what the pool hands to a C kernel. A kernel runs on every worker at once and divides its
 * own work by (worker, num_workers); results must not depend on how it does so. */
#ifndef MTLQ_KERNEL_H
#define MTLQ_KERNEL_H

#include <stdint.h>

#include "../args.h"

typedef struct mtlq_call {
    const void *args;        /* the kernel's argument struct */
    void *const *buffers;    /* addresses of its bindings, in the order args.h gives */
    uint32_t worker;         /* 0 .. num_workers - 1; 0 is the thread that submitted */
    uint32_t num_workers;
    void *scratch;           /* this worker's own, 64-byte aligned, MTLQ_SCRATCH_BYTES */
    struct mtlq_pool *pool;  /* for mtlq_pool_sync */
} mtlq_call;

#define MTLQ_SCRATCH_BYTES (1u << 20)

/* All workers of the running kernel meet here: for kernels of two phases. */
void mtlq_pool_sync(const mtlq_call *call);

typedef void (*mtlq_kernel_fn)(const mtlq_call *call);

typedef struct mtlq_kernel {
    const char *name;
    uint32_t num_bindings;
    uint32_t args_bytes;
    mtlq_kernel_fn run;
} mtlq_kernel;

/* One table per instruction set, made by compiling kernels/cpu once for each; ends with name NULL. */
extern const mtlq_kernel mtlq_kernels_portable[];
extern const mtlq_kernel mtlq_kernels_avx2[];   /* AVX2, FMA, F16C */
extern const mtlq_kernel mtlq_kernels_avx512[]; /* F, BW, VL, DQ, VNNI, VBMI */
extern const mtlq_kernel mtlq_kernels_neon[];   /* dotprod; i8mm where the build has it */

#endif
