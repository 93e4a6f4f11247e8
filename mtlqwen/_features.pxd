from libc.stdint cimport int32_t, uint32_t


cdef class FeatureLog:
    cdef uint32_t[::1] header
    cdef int32_t[::1] feature_rows, slots, positions  # [max_rows]
    cdef readonly Py_ssize_t num_rows
    cdef Py_ssize_t begin  # row of features of the pass's first row
    cdef Py_ssize_t end    # behind the last row of features in use
    cdef uint32_t open_pass(self, Py_ssize_t num_rows, bint due) noexcept nogil
    cdef void close_pass(self, Py_ssize_t num_rows) noexcept nogil
    cdef void add(self, Py_ssize_t row, int32_t slot, int32_t position) noexcept nogil
