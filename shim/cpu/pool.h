/* pool.h: the workers of the cpu device. Worker 0 is the thread that runs a job. */
#ifndef MTLQ_POOL_H
#define MTLQ_POOL_H

#include "../../kernels/cpu/kernel.h"

typedef struct mtlq_pool mtlq_pool;

/* Runs on every worker; call says which one, with args and buffers left to fill. */
typedef void (*mtlq_job_fn)(void *job, mtlq_call *call);

int32_t mtlq_pool_create(uint32_t num_workers, mtlq_pool **out);
/* joinable: false in a child of fork, where the threads do not exist. */
void mtlq_pool_destroy(mtlq_pool *pool, int joinable);
uint32_t mtlq_pool_num_workers(const mtlq_pool *pool);
/* Returns when every worker has finished the job. */
void mtlq_pool_run(mtlq_pool *pool, mtlq_job_fn run, void *job);

#endif
