from libc.stdint cimport int32_t, uint32_t

from mtlqwen._features cimport FeatureLog
from mtlqwen._sequence cimport SequenceFields


cdef class Batch:
    cdef uint32_t[::1] header
    cdef int32_t[::1] input_ids, row_sequence, positions  # [R]
    cdef int32_t[::1] query_start_loc  # [S + 1]
    cdef int32_t[::1] sequence_slots, batched_kv_valid, bank, state, replay  # [S]
    cdef int32_t[::1] logit_rows  # [L]
    cdef readonly FeatureLog features
    cdef uint32_t[::1] draft_header
    cdef int32_t[::1] draft_ids, draft_sequence, draft_positions  # [R]
    cdef int32_t[::1] draft_start_loc, draft_slots, draft_kv_valid  # [S + 1], [S], [S]
    cdef int32_t[::1] draft_rows, target_rows  # [L]
    cdef int32_t num_common_tokens, recent_tokens
    cdef SequenceFields **live  # [S]
    cdef Py_ssize_t num_sequences
    cdef readonly Py_ssize_t num_rows
    cdef readonly Py_ssize_t num_logit_rows
    cdef readonly Py_ssize_t num_injected
    cdef void fill(self, Py_ssize_t n) noexcept nogil
    cdef void fill_drafts(self, Py_ssize_t n) noexcept nogil
