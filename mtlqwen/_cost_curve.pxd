cdef class CostCurve:
    cdef readonly Py_ssize_t num_sequences
    cdef readonly Py_ssize_t max_rows
    cdef Py_ssize_t first  # least rows measured with drafts; 0: none
    cdef Py_ssize_t last  # most
    cdef Py_ssize_t since_plain  # passes with drafts behind the last without
    cdef double *measured_ns  # [max_rows + 1] by number of rows; 0: never
    cdef Py_ssize_t *num_measured  # [max_rows + 1]
    cdef double *further  # [num_sequences] that a further draft is right
    cdef double *likely  # [num_sequences] that the next draft counts
    cdef Py_ssize_t *limits  # [num_sequences] most drafts
    cdef Py_ssize_t *counts  # [num_sequences] drafts taken so far
    cdef Py_ssize_t *best  # [num_sequences] those of the most tokens per time

    cdef double at(self, Py_ssize_t num_rows) noexcept nogil
    cdef void choose(self, Py_ssize_t num_drafting, Py_ssize_t room) noexcept nogil
