cimport cython
from libc.stdint cimport int32_t, uint64_t

from mtlqwen._candidates cimport Candidates


cdef struct Adjustment:
    int32_t token
    int32_t count  # times generated
    bint seen      # in the prompt or generated
    float bias


@cython.final
cdef class Sampler:
    cdef readonly uint64_t seed
    cdef readonly uint64_t position   # tokens accepted so far
    cdef readonly Py_ssize_t num_tokens
    cdef Py_ssize_t num_blocks
    cdef Py_ssize_t top_k             # 0: off
    cdef double top_p
    cdef float min_p
    cdef double temperature
    cdef float scale                  # log2(e) / temperature
    cdef float repetition_penalty, presence_penalty, frequency_penalty
    cdef bint has_penalty
    cdef Adjustment* adjustments      # by increasing token
    cdef Py_ssize_t num_adjustments, max_adjustments
    cdef Sampler raw                  # reads rows without adjustments, for logprobs

    # The filtered distribution of the row that filter() read last.
    cdef Candidates candidates        # unless is_dense
    cdef bint is_dense                # every token is in it; weights are computed from the row
    cdef double* block_mass           # weight of each block of a dense row
    cdef float peak                   # largest adjusted logit
    cdef double total                 # sum of the weights

    cdef int32_t sample_row(self, const float* logits) except -1 nogil
    cdef int filter(self, const float* logits) except -1 nogil
    cdef int gather_enough(self, const float* logits, double mass) except -1 nogil
    cdef double gather_from(self, const float* logits, double least) except -1.0 nogil
    cdef double top_p_target(self, double mass) noexcept nogil
    cdef int32_t draw(self, const float* logits, double uniform) noexcept nogil
    cdef int32_t draw_dense(self, const float* logits, double left) noexcept nogil
    cdef double probability(self, const float* logits, int32_t token) noexcept nogil

    cdef const float* block(
        self, const float* logits, Py_ssize_t base, Py_ssize_t* cursor, float* patched
    ) noexcept nogil
    cdef float adjusted(self, float logit, const Adjustment* adjustment) noexcept nogil
    cdef int gather(self, const float* logits, float threshold, Py_ssize_t limit) except -1 nogil
    cdef void find_peak(self) noexcept nogil
    cdef void weigh_block(self, const float* logits, float* weights) noexcept nogil
    cdef double weigh_row(self, const float* logits) noexcept nogil
    cdef Py_ssize_t place_of(self, int32_t token) noexcept nogil
    cdef Adjustment* adjustment_of(self, int32_t token) except NULL nogil


cdef double uniform(uint64_t seed, uint64_t position, uint64_t draw) noexcept nogil
