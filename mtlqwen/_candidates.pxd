from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy


cdef struct Candidates:
    Py_ssize_t count
    Py_ssize_t capacity
    int32_t* ids        # increasing
    float* logits       # adjusted
    float* weights      # 1, then the probability relative to the most likely token
    Py_ssize_t* order   # scratch of the selection


cdef int reserve(Candidates* c, Py_ssize_t capacity) except -1 nogil
cdef void* grown(void* memory, size_t num_bytes) except NULL nogil
cdef void release(Candidates* c) noexcept nogil
cdef double weigh(Candidates* c, float peak, float scale) noexcept nogil
cdef float keep_best(Candidates* c, double target) noexcept nogil
cdef double drop_below(Candidates* c, float least) noexcept nogil
cdef Py_ssize_t find(const Candidates* c, int32_t token) noexcept nogil


cdef inline uint64_t mix(uint64_t z) noexcept nogil:
    """The output function of SplitMix64."""
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9ULL
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EBULL
    return z ^ (z >> 31)


cdef inline float weight_of(float logit, float peak, float scale) noexcept nogil:
    """2 ** ((logit - peak) * scale) for logit <= peak; 0 below 2 ** -126."""
    cdef float x = (peak - logit) * scale  # the result is 2 ** -x
    cdef float limit = 126.0, two_to_power, series
    cdef int32_t x_bits, limit_bits, result_bits, is_over
    # Floats of one sign compare like their bits: masks, where a branch would not be vectorised.
    memcpy(&x_bits, &x, sizeof(float))
    memcpy(&limit_bits, &limit, sizeof(float))
    is_over = (limit_bits - x_bits) >> 31
    x_bits = (x_bits & ~is_over) | (limit_bits & is_over)
    memcpy(&x, &x_bits, sizeof(float))
    cdef int32_t power = <int32_t>(x + <float>0.5)
    cdef float f = <float>power - x
    # Taylor series of 2 ** f for |f| <= 0.5: error below 1e-8.
    series = <float>1.5252734e-5
    series = series * f + <float>1.5403530e-4
    series = series * f + <float>1.3333558e-3
    series = series * f + <float>9.6181291e-3
    series = series * f + <float>5.5504109e-2
    series = series * f + <float>0.24022651
    series = series * f + <float>0.69314718
    series = series * f + <float>1.0
    cdef int32_t power_bits = (127 - power) << 23
    memcpy(&two_to_power, &power_bits, sizeof(float))
    series = series * two_to_power
    memcpy(&result_bits, &series, sizeof(float))
    result_bits = result_bits & ~is_over
    memcpy(&series, &result_bits, sizeof(float))
    return series
