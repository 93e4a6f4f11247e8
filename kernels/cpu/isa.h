/* isa.h: every file of kernels/cpu is compiled once per instruction set, with MTLQ_ISA set to
 * portable, avx2, avx512 or neon; MTLQ_NAME keeps their symbols apart. */
#ifndef MTLQ_ISA_H
#define MTLQ_ISA_H

#include "kernel.h"

#define MTLQ_JOIN2(a, b) a##_##b
#define MTLQ_JOIN(a, b) MTLQ_JOIN2(a, b)
#define MTLQ_NAME(name) MTLQ_JOIN(name, MTLQ_ISA) /* rmsnorm -> rmsnorm_avx2 */

/* The half-open share [*begin, *end) of count items that falls to this worker. */
static inline void mtlq_share(const mtlq_call *call, uint64_t count, uint64_t *begin, uint64_t *end)
{
    *begin = count * call->worker / call->num_workers;
    *end = count * (call->worker + 1) / call->num_workers;
}

static inline uint32_t mtlq_rows(const mtlq_call *call, uint32_t rows)
{
    return ((const uint32_t *)call->buffers[0])[rows];
}

#endif
