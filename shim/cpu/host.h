/* host.h: what the machine is and allows. */
#ifndef MTLQ_HOST_H
#define MTLQ_HOST_H

#include <stddef.h>

#include "../../kernels/cpu/kernel.h"

typedef struct mtlq_isa {
    const char *name;
    const mtlq_kernel *kernels; /* ends with name NULL */
    int (*is_supported)(void);
} mtlq_isa;

/* The instruction set of that name, or the best one for NULL; NULL if this machine or build lacks it. */
const mtlq_isa *mtlq_isa_find(const char *name);
/* Writes the names that this machine runs, best first, as in "avx2, portable". */
void mtlq_isa_list(char *text, size_t num_bytes);

uint32_t mtlq_host_num_cores(void); /* that this process may use */
uint64_t mtlq_host_memory_bytes(void);
uint32_t mtlq_host_page_bytes(void);
uint32_t mtlq_host_max_mappings(void); /* 0 = unlimited */
void mtlq_host_name(char *text, size_t num_bytes);

#endif
