"""The tokens that a filter may leave, and the selection of the best of them without sorting."""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

cdef enum:
    NUM_BUCKETS = 1024  # the weight 1, the largest, is in bucket 1016


cdef int reserve(Candidates* c, Py_ssize_t capacity) except -1 nogil:
    """Makes room for `capacity` candidates in all."""
    if capacity <= c.capacity:
        return 0
    capacity = max(capacity, 2 * c.capacity)
    c.ids = <int32_t*>grown(c.ids, capacity * sizeof(int32_t))
    c.logits = <float*>grown(c.logits, capacity * sizeof(float))
    c.weights = <float*>grown(c.weights, capacity * sizeof(float))
    c.order = <Py_ssize_t*>grown(c.order, capacity * sizeof(Py_ssize_t))
    c.capacity = capacity
    return 0


cdef void* grown(void* memory, size_t num_bytes) except NULL nogil:
    cdef void* larger = realloc(memory, num_bytes)
    if larger == NULL:
        with gil:
            raise MemoryError(f"no memory for {num_bytes} bytes of a sampler")
    return larger


cdef void release(Candidates* c) noexcept nogil:
    free(c.ids)
    free(c.logits)
    free(c.weights)
    free(c.order)


cdef double weigh(Candidates* c, float peak, float scale) noexcept nogil:
    """Fills in the weights; their sum."""
    cdef double total = 0.0
    cdef Py_ssize_t i
    for i in range(c.count):
        c.weights[i] = weight_of(c.logits[i], peak, scale)
        total += c.weights[i]
    return total


cdef float keep_best(Candidates* c, double target) noexcept nogil:
    """Keeps the fewest, best first, that weigh `target` together; the logit of the last one."""
    cdef Py_ssize_t last = last_of_best(c, target)
    cdef float cut = c.logits[last]
    cdef Py_ssize_t i, kept = 0
    for i in range(c.count):
        if c.logits[i] > cut or (c.logits[i] == cut and i <= last):
            move(c, i, kept)
            kept += 1
    c.count = kept
    return cut


cdef double drop_below(Candidates* c, float least) noexcept nogil:
    """Drops what weighs less than `least`; the weight of the rest."""
    cdef double total = 0.0
    cdef Py_ssize_t i, kept = 0
    for i in range(c.count):
        if c.weights[i] >= least:
            total += c.weights[i]
            move(c, i, kept)
            kept += 1
    c.count = kept
    return total


cdef inline void move(Candidates* c, Py_ssize_t source, Py_ssize_t target) noexcept nogil:
    c.ids[target] = c.ids[source]
    c.logits[target] = c.logits[source]
    c.weights[target] = c.weights[source]


cdef Py_ssize_t find(const Candidates* c, int32_t token) noexcept nogil:
    """Index of `token`, -1 if it is not there."""
    cdef Py_ssize_t low = 0, high = c.count, middle
    while low < high:
        middle = (low + high) // 2
        if c.ids[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < c.count and c.ids[low] == token else -1


cdef inline bint is_better(const float* logits, Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return logits[a] > logits[b] or (logits[a] == logits[b] and a < b)


cdef Py_ssize_t last_of_best(const Candidates* c, double target) noexcept nogil:
    """Where the shortest run of candidates, best first, that weighs `target` ends: quickselect."""
    cdef Py_ssize_t* order = c.order
    cdef double taken = 0.0, mass  # mass: of what lies between `taken` and the pivot
    cdef Py_ssize_t low = 0, high = fill_boundary_bucket(c, target, &taken), i, split, pivot
    while low < high:
        i = low + <Py_ssize_t>(mix(<uint64_t>(low + high)) % <uint64_t>(high - low))
        pivot = order[i]
        order[i] = order[high - 1]
        split = low
        mass = 0.0
        for i in range(low, high - 1):
            if is_better(c.logits, order[i], pivot):
                order[i], order[split] = order[split], order[i]
                mass += c.weights[order[split]]
                split += 1
        order[high - 1] = order[split]
        order[split] = pivot
        if taken + mass >= target and split > low:
            high = split
            continue
        mass += c.weights[pivot]
        if taken + mass >= target:
            return pivot
        taken += mass
        low = split + 1
    return order[high - 1]


cdef Py_ssize_t fill_boundary_bucket(
    const Candidates* c, double target, double* taken
) noexcept nogil:
    """Puts the candidates among which `target` is reached into c.order; their number.

    Buckets are eighths of a power of two of the weight. `taken` is the weight of all better ones.
    """
    cdef double bucket_mass[NUM_BUCKETS]
    cdef Py_ssize_t i, count = 0, bucket = NUM_BUCKETS - 1
    memset(bucket_mass, 0, sizeof(bucket_mass))
    for i in range(c.count):
        bucket_mass[bucket_of(c.weights[i])] += c.weights[i]
    while bucket > 0 and taken[0] + bucket_mass[bucket] < target:
        taken[0] += bucket_mass[bucket]
        bucket -= 1
    for i in range(c.count):
        if bucket_of(c.weights[i]) == bucket:
            c.order[count] = i
            count += 1
    return count


cdef inline Py_ssize_t bucket_of(float weight) noexcept nogil:
    cdef int32_t bits
    memcpy(&bits, &weight, sizeof(float))
    return bits >> 20
