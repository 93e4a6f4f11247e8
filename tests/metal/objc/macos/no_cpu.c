/* no_cpu.c: what else the macOS link needs: a cpu device without anything, and what compiler-rt would
 * bring for @available (libSystem has the check itself). */
#include "../../../../shim/device.h"

const mtlq_backend mtlq_cpu = {.name = "cpu"};

struct version {
    uint32_t platform, packed;
};
extern int _availability_version_check(uint32_t count, struct version *versions);

int32_t __isPlatformVersionAtLeast(uint32_t platform, uint32_t major, uint32_t minor, uint32_t patch)
{
    struct version wanted = {platform, major << 16 | minor << 8 | patch};
    return _availability_version_check(1, &wanted);
}
