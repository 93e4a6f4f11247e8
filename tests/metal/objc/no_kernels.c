/* no_kernels.c: the cpu device without kernels: the tests here are of the metal device. */
#include "../../../kernels/cpu/kernel.h"

const mtlq_kernel mtlq_kernels_portable[] = {{0}};
const mtlq_kernel mtlq_kernels_avx2[] = {{0}};
const mtlq_kernel mtlq_kernels_avx512[] = {{0}};
