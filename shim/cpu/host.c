/* host.c: cores, memory and limits of this machine, and of the control group on Linux. */
#include "host.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define FALLBACK_MAPPINGS 65530u /* the default of Linux */
#define OTHER_MAPPINGS 4096u     /* left to the rest of the process */

#if defined(__linux__)
/* Up to two numbers of a file of the kernel; returns how many were there ("max" is none). */
static int read_numbers(const char *path, uint64_t *first, uint64_t *second)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    unsigned long long a = 0, b = 0;
    int count = fscanf(file, "%llu %llu", &a, &b);
    fclose(file);
    *first = a;
    *second = b;
    return count < 0 ? 0 : count;
}
#endif

uint32_t mtlq_host_num_cores(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t num_cores = count > 0 ? (uint64_t)count : 1;
#if defined(__linux__)
    cpu_set_t usable;
    if (!sched_getaffinity(0, sizeof usable, &usable))
        num_cores = (uint64_t)CPU_COUNT(&usable);
    uint64_t quota, period;
    if (read_numbers("/sys/fs/cgroup/cpu.max", &quota, &period) == 2 && period) {
        uint64_t allowed = (quota + period - 1) / period;
        if (allowed && allowed < num_cores)
            num_cores = allowed;
    }
#endif
    return (uint32_t)num_cores;
}

uint64_t mtlq_host_memory_bytes(void)
{
    long num_pages = sysconf(_SC_PHYS_PAGES);
    uint64_t num_bytes = num_pages > 0 ? (uint64_t)num_pages * mtlq_host_page_bytes() : 0;
#if defined(__linux__)
    uint64_t limit, unused;
    if (read_numbers("/sys/fs/cgroup/memory.max", &limit, &unused) && limit && limit < num_bytes)
        num_bytes = limit;
#endif
    return num_bytes;
}

uint32_t mtlq_host_page_bytes(void)
{
    return (uint32_t)sysconf(_SC_PAGESIZE);
}

uint32_t mtlq_host_max_mappings(void)
{
#if defined(__linux__)
    uint64_t limit, unused;
    if (!read_numbers("/proc/sys/vm/max_map_count", &limit, &unused))
        limit = FALLBACK_MAPPINGS;
    if (limit > UINT32_MAX)
        limit = UINT32_MAX;
    return (uint32_t)(limit > 2 * OTHER_MAPPINGS ? limit - OTHER_MAPPINGS : limit / 2 + 1);
#else
    return 0;
#endif
}

void mtlq_host_name(char *text, size_t num_bytes)
{
    memset(text, 0, num_bytes);
#if defined(__APPLE__)
    size_t size = num_bytes - 1;
    sysctlbyname("machdep.cpu.brand_string", text, &size, NULL, 0);
#elif defined(__x86_64__)
    uint32_t brand[12];
    unsigned *word = brand;
    for (unsigned leaf = 0x80000002u; leaf <= 0x80000004u; leaf++, word += 4)
        if (!__get_cpuid(leaf, &word[0], &word[1], &word[2], &word[3]))
            return;
    size_t size = sizeof brand < num_bytes - 1 ? sizeof brand : num_bytes - 1;
    memcpy(text, brand, size);
    for (size_t end = strlen(text); end > 0 && text[end - 1] == ' '; end--)
        text[end - 1] = 0;
#elif defined(__aarch64__)
    strncpy(text, "arm64", num_bytes - 1);
#endif
}
