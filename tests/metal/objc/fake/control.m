/* control.m: what tests set (system version, limits, failures) and read (counts), by name. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))

static struct {
    const char *name;
    long value, initial;
} settings[] = {
    {"version", 2604, 2604},          /* of macOS: 100 * major + minor */
    {"sparse", 1, 1},                 /* what supportsPlacementSparse says */
    {"sparse_works", 1, 1},           /* 0: mappings have no effect */
    {"family", 1009, 1009},
    {"max_buffer_bytes", 1l << 36, 1l << 36},
    {"max_threads", 1024, 1024},      /* of a threadgroup, for every pipeline */
    {"group_bytes", 0, 0},            /* threadgroup memory that every pipeline takes */
    {"seed", 1, 1},                   /* of the order of dispatches */
    {"fail_at", 0, 0},                /* the call that fails, from 1; 0: none */
    {"fail_dispatch", 0, 0},          /* the dispatch that fails on the GPU, from 1 */
    {"throw", 0, 0},                  /* 1: commandBuffer raises an exception */
    {"stall_ms", 0, 0},               /* before each command buffer */
    {"calls", 0, 0},                  /* counted so far; the rest too */
    {"dispatches", 0, 0},
    {"barriers", 0, 0},
    {"compiled", 0, 0},               /* pipelines that no archive had */
    {"mapped_tiles", 0, 0},
};
#define NUM_SETTINGS (sizeof settings / sizeof settings[0])

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int (*compiler)(const char *source, const char *kernels, char *answer, size_t num_bytes);
static char trace_file[512];

static long *setting(const char *name)
{
    for (size_t i = 0; i < NUM_SETTINGS; i++)
        if (!strcmp(settings[i].name, name))
            return &settings[i].value;
    fake_stop("no setting %s", name);
}

EXPORT long fake_get(const char *name)
{
    return __atomic_load_n(setting(name), __ATOMIC_RELAXED);
}

EXPORT void fake_set(const char *name, long value)
{
    __atomic_store_n(setting(name), value, __ATOMIC_RELAXED);
}

EXPORT void fake_count(const char *name, long change)
{
    __atomic_add_fetch(setting(name), change, __ATOMIC_RELAXED);
}

EXPORT void fake_reset(void)
{
    for (size_t i = 0; i < NUM_SETTINGS; i++)
        settings[i].value = settings[i].initial;
}

bool fake_fails(void)
{
    long call = __atomic_add_fetch(setting("calls"), 1, __ATOMIC_RELAXED);
    return call == fake_get("fail_at");
}

static int allocation_fails(const char *class_name)
{
    (void)class_name;
    return fake_fails();
}

extern int (*objc_allocation_fails)(const char *class_name);

EXPORT void fake_set_compiler(int (*function)(const char *, const char *, char *, size_t))
{
    compiler = function;
    objc_allocation_fails = allocation_fails;
}

int fake_compile(const char *source, const char *kernels, char *answer, size_t num_bytes)
{
    if (!compiler)
        fake_stop("no compiler is set");
    return compiler(source, kernels, answer, num_bytes);
}

/* For Foundation.h: the version text if the system has it, else NULL. */
const char *fake_available(const char *version)
{
    int major = 0, minor = 0;
    if (sscanf(version, "macOS %d.%d", &major, &minor) != 2)
        fake_stop("@available(%s): want macOS and a version", version);
    return fake_get("version") >= 100 * major + minor ? version : NULL;
}

NSError *fake_error(NSString *text)
{
    id objects[] = {text}, keys[] = {NSLocalizedDescriptionKey};
    NSDictionary *info = [NSDictionary dictionaryWithObjects:objects forKeys:keys count:1];
    return [NSError errorWithDomain:@"FakeMetal" code:1 userInfo:info];
}

void fake_stop(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("FakeMetal: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(86);
}

double fake_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define NULL_BYTES (1u << 24) /* from address 0 on: further than any kernel goes into a page */

/* A touch of an unmapped tile, or through an unmapped entry of a page table, ends the process. */
static void report_fault(int number, siginfo_t *fault, void *context)
{
    (void)context;
    NSUInteger tile;
    if (fake_find_tile(fault->si_addr, &tile))
        fake_stop("access to unmapped tile %lu of a sparse buffer", tile);
    if ((uintptr_t)fault->si_addr < NULL_BYTES)
        fake_stop("access through an unmapped entry of a page table");
    signal(number, SIG_DFL);
}

EXPORT void fake_catch_faults(void)
{
    struct sigaction action = {.sa_sigaction = report_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}

/* ---- capture ------------------------------------------------------------------------------- */

void fake_trace(NSString *line)
{
    pthread_mutex_lock(&mutex);
    FILE *file = trace_file[0] ? fopen(trace_file, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", line.UTF8String);
        fclose(file);
    }
    pthread_mutex_unlock(&mutex);
}

@implementation MTLCaptureDescriptor
@end
@implementation MTLCaptureManager
+ (MTLCaptureManager *)sharedCaptureManager
{
    return [MTLCaptureManager new];
}
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)descriptor error:(NSError **)error
{
    if (fake_fails())
        return NO;
    if (descriptor.destination != MTLCaptureDestinationGPUTraceDocument || !descriptor.captureObject)
        fake_stop("a capture without device or document");
    (void)error;
    snprintf(trace_file, sizeof trace_file, "%s", descriptor.outputURL.path.UTF8String);
    return YES;
}
- (void)stopCapture
{
    trace_file[0] = 0;
}
@end
