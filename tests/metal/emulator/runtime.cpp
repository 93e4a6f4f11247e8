// The fibre runtime of the emulator. One threadgroup runs at a time; each of its GPU threads is a
// fibre with its own stack, below which lies a guard page. Fibres switch at SIMD operations and
// barriers only.
//
// Under ThreadSanitizer (METAL_TSAN) every fibre is one of its fibers and only barriers make
// happens-before edges, so a missing barrier is a data race whatever the schedule was. This file is
// not instrumented itself, and TSan must ignore its calls of memcpy and the like
// (ignore_interceptors_accesses).
#include "runtime.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(METAL_TSAN)
extern "C" {
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#define ACQUIRE(edge) __tsan_acquire(&(edge))
#define RELEASE(edge) __tsan_release(&(edge))
#else
#define ACQUIRE(edge) (void)0
#define RELEASE(edge) (void)0
#endif
#if defined(METAL_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
#endif

namespace {

constexpr size_t kStackBytes = METAL_STACK_BYTES;
constexpr size_t kGuardBytes = 16384;
constexpr size_t kArenaBytes = size_t(4) << 30; // address space; touched as used
constexpr int kMaxThreads = 1024;
constexpr uint32_t kMaxGroupBytes = 32768; // of threadgroup memory, Metal's limit
constexpr int kSimdgroupBarrier = 1000;

enum class State { ready, in_simdgroup, at_barrier, done };

struct Fibre {
    void *stack_pointer = nullptr;
    char *stack = nullptr;
    State state = State::ready;
    int line = 0;
    metal_thread thread{};
    void *tsan = nullptr, *asan = nullptr;
};

struct Simdgroup {
    uint32_t generation = 0, num_arrived = 0, num_live = 0;
    int line = 0, operation = 0;
    alignas(64) char slots[2][32][METAL_SLOT_BYTES];
    alignas(64) char result[2][METAL_RESULT_BYTES];
    char barrier_edges[2];
};

struct Variable {
    const void *key;
    char *memory;
};

std::vector<Fibre> fibres;
Simdgroup simdgroups[kMaxThreads / 32];
Fibre host;
std::vector<Variable> variables; // of the running threadgroup
char *arena;
size_t arena_used;
uint32_t group_bytes;

metal_entry entry;
int current, num_threads, num_live, num_at_barrier, barrier_line;
uint32_t barrier_generation;
// A thread may leave a barrier when others have already come to the next one: two edges in turn.
char barrier_edges[2], start_edge, end_edge;
std::vector<int> ready; // the next to run is at `ready_head` or anywhere behind it
size_t ready_head;
uint64_t seed, random_state;
bool failed;
std::string error;

uint32_t next_random()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return uint32_t(random_state >> 32);
}

template <class... Values>
void fail(const char *format, Values... values)
{
    if (failed)
        return;
    failed = true;
    char text[400];
    snprintf(text, sizeof text, format, values...);
    error = text;
}

} // namespace

// Saves the callee-saved registers on the running stack and takes those of the other.
extern "C" void metal_switch(void **save, void *load);
#if defined(__x86_64__)
asm(".text\n.globl metal_switch\n.type metal_switch,@function\nmetal_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
constexpr int kSavedWords = 6;
#elif defined(__aarch64__)
asm(".text\n.globl metal_switch\n.type metal_switch,@function\nmetal_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
    "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\n"
    "stp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
    "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#endif

namespace {

void jump(Fibre &from, Fibre &to, bool is_dying)
{
#if defined(METAL_TSAN)
    __tsan_switch_to_fiber(to.tsan, 1);
#endif
#if defined(METAL_ASAN)
    __sanitizer_start_switch_fiber(is_dying ? nullptr : &from.asan, to.stack,
                                   to.stack ? kStackBytes : 0);
#endif
    metal_switch(&from.stack_pointer, to.stack_pointer);
#if defined(METAL_ASAN)
    __sanitizer_finish_switch_fiber(from.asan, nullptr, nullptr);
#endif
    (void)is_dying;
}

void report_deadlock()
{
    for (int i = 0; i < num_threads; ++i)
        if (fibres[i].state == State::in_simdgroup)
            return fail("SIMD operation at line %d not reached by all lanes (thread %d waits)",
                        fibres[i].line, i);
    for (int i = 0; i < num_threads; ++i)
        if (fibres[i].state == State::at_barrier)
            return fail("threadgroup_barrier at line %d reached by %d of %d threads",
                        fibres[i].line, num_at_barrier, num_threads);
}

int take_ready()
{
    const size_t count = ready.size() - ready_head;
    size_t pick = 0;
    if (seed % 2)
        pick = next_random() % 4 ? count - 1 : next_random() % count;
    else if (seed)
        pick = next_random() % count;
    const int thread = ready[ready_head + pick];
    ready[ready_head + pick] = ready[ready_head];
    ++ready_head;
    return thread;
}

// Leaves the running fibre for the next ready one, or for the host when there is none.
void run_next(bool is_dying)
{
    const int old = current;
    if (failed || ready_head == ready.size()) {
        if (num_live > 0)
            report_deadlock();
        return jump(fibres[old], host, is_dying);
    }
    current = take_ready();
    if (current != old)
        jump(fibres[old], fibres[current], is_dying);
}

void make_ready(int thread)
{
    if (ready_head > 4096) { // keep the queue short
        ready.erase(ready.begin(), ready.begin() + ready_head);
        ready_head = 0;
    }
    fibres[thread].state = State::ready;
    ready.push_back(thread);
}

void complete_exchange(Simdgroup &group, int index, int last_to_arrive, metal_reduce reduce)
{
    for (int thread = 32 * index; thread < 32 * index + 32; ++thread)
        if (thread != last_to_arrive)
            make_ready(thread);
    const int side = group.generation & 1;
    if (reduce)
        reduce(group.slots[side], group.result[side]);
    group.num_arrived = 0;
    ++group.generation;
}

void run_fibre()
{
#if defined(METAL_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    ACQUIRE(start_edge);
    entry(&fibres[current].thread);
    RELEASE(end_edge);
    fibres[current].state = State::done;
    --num_live;
    --simdgroups[current / 32].num_live;
    run_next(true);
    abort();
}

void make_fibres(int count)
{
    fibres.reserve(kMaxThreads);
    while (int(fibres.size()) < count) {
        Fibre fibre;
        char *memory = (char *)mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mprotect(memory, kGuardBytes, PROT_NONE);
        fibre.stack = memory + kGuardBytes;
#if defined(METAL_TSAN)
        fibre.tsan = __tsan_create_fiber(0);
#endif
        fibres.push_back(fibre);
    }
#if defined(METAL_TSAN)
    host.tsan = __tsan_get_current_fiber();
#endif
}

void prepare_stack(Fibre &fibre)
{
    void **top = (void **)(uintptr_t(fibre.stack + kStackBytes - 64) & ~uintptr_t(15));
#if defined(__x86_64__)
    *--top = nullptr;
    *--top = (void *)run_fibre;
    for (int i = 0; i < kSavedWords; ++i)
        *--top = nullptr;
#else
    top -= 20;
    memset(top, 0, 160);
    top[11] = (void *)run_fibre;
#endif
    fibre.stack_pointer = top;
}

void free_variables()
{
#if defined(METAL_ASAN)
    for (const Variable &variable : variables)
        free(variable.memory);
#endif
#if !defined(METAL_TSAN)
    arena_used = 0; // under TSan groups get fresh addresses: they are not ordered
#endif
    variables.clear();
    group_bytes = 0;
}

void start_group(const metal_launch &launch, const uint32_t position[3])
{
    ready.clear();
    ready_head = 0;
    num_live = num_threads;
    num_at_barrier = 0;
    const uint32_t *threads = launch.threads;
    for (int i = 0; i < num_threads; ++i) {
        Fibre &fibre = fibres[i];
        metal_thread &t = fibre.thread;
        memcpy(t.buffers, launch.buffers, sizeof t.buffers);
        const uint32_t place[3] = {i % threads[0], i / threads[0] % threads[1],
                                   i / threads[0] / threads[1]};
        for (int d = 0; d < 3; ++d) {
            t.position_in_group[d] = place[d];
            t.group_position[d] = position[d];
            t.position_in_grid[d] = position[d] * threads[d] + place[d];
            t.threads_per_group[d] = threads[d];
            t.groups_per_grid[d] = launch.groups[d];
            t.threads_per_grid[d] = launch.groups[d] * threads[d];
        }
        t.index_in_group = i;
        t.lane = i % 32;
        t.simdgroup = i / 32;
        t.num_simdgroups = (num_threads + 31) / 32;
        fibre.asan = nullptr;
        prepare_stack(fibre);
        make_ready(i);
    }
    for (int g = 0; g < (num_threads + 31) / 32; ++g) {
        simdgroups[g].num_arrived = 0;
        simdgroups[g].num_live = num_threads - 32 * g < 32 ? num_threads - 32 * g : 32;
    }
}

} // namespace

extern "C" {

void *metal_collect(const void *value, uint32_t size, int line, int operation, metal_reduce reduce)
{
    Fibre &me = fibres[current];
    const int index = current / 32;
    Simdgroup &group = simdgroups[index];
    const int side = group.generation & 1;
    memcpy(group.slots[side][me.thread.lane], value, size);
    me.line = line;
    if (group.num_live < 32) {
        fail("SIMD operation at line %d with %d of 32 lanes", line, int(group.num_live));
        run_next(false);
    }
    if (group.num_arrived == 0) {
        group.line = line;
        group.operation = operation;
    } else if (group.line != line || group.operation != operation) {
        fail("divergent SIMD operation: thread %d at line %d, its SIMD group at line %d", current,
             line, group.line);
        run_next(false);
    }
    if (++group.num_arrived == 32) {
        complete_exchange(group, index, current, reduce);
    } else {
        me.state = State::in_simdgroup;
        run_next(false);
    }
    return reduce ? (void *)group.result[side] : (void *)group.slots[side];
}

void *metal_exchange(const void *value, uint32_t size, int line, int operation)
{
    return metal_collect(value, size, line, operation, nullptr);
}

uint32_t metal_lane(void)
{
    return fibres[current].thread.lane;
}

void metal_threadgroup_barrier(int line)
{
    fibres[current].line = line;
    if (num_at_barrier == 0) {
        barrier_line = line;
    } else if (barrier_line != line) {
        fail("divergent threadgroup_barrier: thread %d at line %d, others at line %d", current,
             line, barrier_line);
        run_next(false);
    }
    const int side = barrier_generation & 1;
    RELEASE(barrier_edges[side]);
    if (++num_at_barrier == num_threads) {
        num_at_barrier = 0;
        ++barrier_generation;
        for (int i = 0; i < num_threads; ++i)
            if (fibres[i].state == State::at_barrier)
                make_ready(i);
    } else {
        fibres[current].state = State::at_barrier;
        run_next(false);
    }
    ACQUIRE(barrier_edges[side]);
    (void)side;
}

void metal_simdgroup_barrier(int line)
{
    Simdgroup &group = simdgroups[current / 32];
    const int side = group.generation & 1;
    RELEASE(group.barrier_edges[side]);
    const char nothing = 0;
    metal_exchange(&nothing, 1, line, kSimdgroupBarrier);
    ACQUIRE(group.barrier_edges[side]);
    (void)group, (void)side;
}

void *metal_threadgroup_memory(const void *key, uint32_t num_bytes)
{
    for (const Variable &variable : variables)
        if (variable.key == key)
            return variable.memory;
    group_bytes += num_bytes;
    if (group_bytes > kMaxGroupBytes)
        fail("%u bytes of threadgroup memory: the limit is %u", group_bytes, kMaxGroupBytes);
#if defined(METAL_ASAN)
    char *memory = (char *)malloc(num_bytes); // of the exact size, with red zones
#else
    char *memory = arena + arena_used;
    arena_used += (num_bytes + 255) & ~255u;
    if (arena_used > kArenaBytes)
        abort();
#endif
    memset(memory, 0xFF, num_bytes);
    variables.push_back({key, memory});
    return memory;
}

const char *metal_error(void)
{
    return error.c_str();
}

void *metal_allocate(uint64_t num_bytes)
{
    return malloc(num_bytes);
}

void metal_free(void *memory)
{
    free(memory);
}

void metal_copy(void *target, const void *source, uint64_t num_bytes)
{
    memcpy(target, source, num_bytes);
}

int metal_dispatch(const metal_launch *launch)
{
    error.clear();
    failed = false;
    num_threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    if (num_threads < 1 || num_threads > kMaxThreads) {
        fail("threads per threadgroup: %d is not in 1..%d", num_threads, kMaxThreads);
        return 1;
    }
    if (!arena)
        arena = (char *)mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    make_fibres(num_threads);
    entry = launch->entry;
    seed = launch->seed;
    random_state = seed * 0x9E3779B97F4A7C15ull | 1;
    RELEASE(start_edge);
    const uint32_t *groups = launch->groups;
    const uint64_t num_groups = uint64_t(groups[0]) * groups[1] * groups[2];
    for (uint64_t i = 0; i < num_groups && !failed; ++i) {
        const uint64_t g = seed ? num_groups - 1 - i : i;
        const uint32_t position[3] = {uint32_t(g % groups[0]), uint32_t(g / groups[0] % groups[1]),
                                      uint32_t(g / groups[0] / groups[1])};
        start_group(*launch, position);
        current = take_ready();
        jump(host, fibres[current], false);
        free_variables();
    }
    ACQUIRE(end_edge);
    return failed;
}
}
