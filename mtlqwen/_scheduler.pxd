from libc.stdint cimport int32_t

from mtlqwen._sequence cimport SequenceFields


cdef class Scheduler:
    cdef readonly int32_t pass_tokens
    cdef readonly int32_t max_slots
    cdef double _prompt_share
    cdef SequenceFields **live  # [max_slots]


cdef int32_t divide_pass(
    SequenceFields **live, Py_ssize_t n, int32_t pass_tokens, double prompt_share
) noexcept nogil
