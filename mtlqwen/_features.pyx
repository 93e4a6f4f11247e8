"""Which rows of features the drafter's context still lacks."""

from libc.stdint cimport int32_t, uint32_t


cdef class FeatureLog:
    def __cinit__(self, arrays):
        self.header = arrays.header
        self.feature_rows = arrays.feature_rows
        self.slots = arrays.row_sequence
        self.positions = arrays.positions

    def drop(self, int32_t slot):
        cdef Py_ssize_t i, kept = 0
        for i in range(self.num_rows):
            if self.slots[i] != slot:
                self.feature_rows[kept] = self.feature_rows[i]
                self.slots[kept] = self.slots[i]
                self.positions[kept] = self.positions[i]
                kept += 1
        self.num_rows = kept

    cdef uint32_t open_pass(self, Py_ssize_t num_rows, bint due) noexcept nogil:
        """Where a pass puts its features; if they are due or room is short, it first injects all."""
        due = due or self.end + num_rows > self.feature_rows.shape[0]
        self.header[0] = <uint32_t>self.num_rows if due else 0
        self.begin = 0 if due else self.end
        return <uint32_t>self.begin

    cdef void close_pass(self, Py_ssize_t num_rows) noexcept nogil:
        """Before the rows of a pass that has run are added."""
        self.header[0] = 0
        if self.begin == 0:  # what was here has been injected
            self.num_rows = 0
        self.end = self.begin + num_rows

    cdef void add(self, Py_ssize_t row, int32_t slot, int32_t position) noexcept nogil:
        """Row `row` of the pass is a position of a slot that counts as computed."""
        self.feature_rows[self.num_rows] = <int32_t>(self.begin + row)
        self.slots[self.num_rows] = slot
        self.positions[self.num_rows] = position
        self.num_rows += 1
