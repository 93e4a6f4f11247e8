/* isa.c: which of the built kernel tables this machine can run. */
#include <string.h>

#include "host.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static int always(void)
{
    return 1;
}

#if defined(__x86_64__)

/* Bits of cpuid (Intel SDM 2A, CPUID; AMD APM 3, appendix E). */
#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512F (1u << 16)
#define LEAF7_EBX_AVX512DQ (1u << 17)
#define LEAF7_EBX_AVX512BW (1u << 30)
#define LEAF7_EBX_AVX512VL (1u << 31)
#define LEAF7_ECX_AVX512VBMI (1u << 1)
#define LEAF7_ECX_AVX512VNNI (1u << 11)
/* Register state that the operating system saves. */
#define XCR0_YMM 0x06u
#define XCR0_ZMM 0xe6u

static int has_all(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static uint32_t saved_state(void)
{
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_all(ecx, LEAF1_ECX_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

static int has_avx2(void)
{
    uint32_t eax, ebx, ecx, edx;
    if (!has_all(saved_state(), XCR0_YMM) || !__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
        !has_all(ecx, LEAF1_ECX_FMA | LEAF1_ECX_AVX | LEAF1_ECX_F16C))
        return 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && has_all(ebx, LEAF7_EBX_AVX2);
}

static int has_avx512(void)
{
    uint32_t eax, ebx, ecx, edx;
    return has_avx2() && has_all(saved_state(), XCR0_ZMM) &&
           __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           has_all(ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW |
                            LEAF7_EBX_AVX512VL) &&
           has_all(ecx, LEAF7_ECX_AVX512VBMI | LEAF7_ECX_AVX512VNNI);
}

#elif defined(__aarch64__)

static int has_dotprod(void)
{
#if defined(__APPLE__)
    int present = 0;
    size_t size = sizeof present;
    return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &present, &size, NULL, 0) && present;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & (1u << 20)) != 0; /* HWCAP_ASIMDDP */
#else
    return 0;
#endif
}

#endif

/* Best first. */
static const mtlq_isa isas[] = {
#if defined(__x86_64__)
    {"avx512", mtlq_kernels_avx512, has_avx512},
    {"avx2", mtlq_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {"neon", mtlq_kernels_neon, has_dotprod},
#endif
    {"portable", mtlq_kernels_portable, always},
};
#define NUM_ISAS (sizeof isas / sizeof isas[0])

const mtlq_isa *mtlq_isa_find(const char *name)
{
    for (size_t i = 0; i < NUM_ISAS; i++)
        if ((!name || !strcmp(name, isas[i].name)) && isas[i].is_supported())
            return &isas[i];
    return NULL;
}

void mtlq_isa_list(char *text, size_t num_bytes)
{
    text[0] = 0;
    for (size_t i = 0; i < NUM_ISAS; i++) {
        if (!isas[i].is_supported())
            continue;
        if (text[0])
            strncat(text, ", ", num_bytes - strlen(text) - 1);
        strncat(text, isas[i].name, num_bytes - strlen(text) - 1);
    }
}
