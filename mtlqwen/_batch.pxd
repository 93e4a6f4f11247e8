from libc.stdint cimport int32_t, uint32_t

from mtlqwen._sequence cimport SequenceFields


cdef class Batch:
    cdef uint32_t[::1] header
    cdef int32_t[::1] input_ids, row_sequence, positions  # [R]
    cdef int32_t[::1] query_start_loc  # [S + 1]
    cdef int32_t[::1] sequence_slots, batched_kv_valid, bank, state  # [S]
    cdef int32_t[::1] logit_rows  # [L]
    cdef SequenceFields **live  # [S]
    cdef readonly Py_ssize_t num_rows
    cdef readonly Py_ssize_t num_logit_rows
    cdef void fill(self, Py_ssize_t n) noexcept nogil
