"""Packs the rows of one step into the device's batch arrays."""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from mtlqwen._sequence cimport NO_ROW, Sequence, SequenceFields


cdef class Batch:
    def __cinit__(self, arrays):
        self.header = arrays.header
        self.input_ids = arrays.input_ids
        self.row_sequence = arrays.row_sequence
        self.positions = arrays.positions
        self.query_start_loc = arrays.query_start_loc
        self.sequence_slots = arrays.sequence_slots
        self.batched_kv_valid = arrays.batched_kv_valid
        self.bank = arrays.bank
        self.state = arrays.state
        self.logit_rows = arrays.logit_rows
        cdef Py_ssize_t max_sequences = self.sequence_slots.shape[0]
        self.live = <SequenceFields **>malloc(max_sequences * sizeof(SequenceFields *))
        if self.live == NULL:
            raise MemoryError("batch")

    def __dealloc__(self):
        free(self.live)

    def pack(self, list live not None):
        cdef Py_ssize_t i, n = len(live), rows = 0, logit_rows = 0
        cdef Sequence sequence
        if n > self.sequence_slots.shape[0]:
            raise ValueError(f"{n} sequences, room for {self.sequence_slots.shape[0]}")
        for i in range(n):
            sequence = live[i]
            self.live[i] = &sequence.fields
            rows += sequence.fields.count
            logit_rows += max(num_logit_rows(&sequence.fields), 0)
        if rows > self.input_ids.shape[0] or logit_rows > self.logit_rows.shape[0]:
            raise ValueError(
                f"{rows} rows with {logit_rows} rows of logits, room for {self.input_ids.shape[0]} "
                f"with {self.logit_rows.shape[0]}"
            )
        with nogil:
            self.fill(n)
        return rows

    cdef void fill(self, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i, k, row = 0, logit_row = 0, wanted
        cdef SequenceFields *s
        for i in range(n):
            s = self.live[i]
            self.query_start_loc[i] = <int32_t>row
            self.sequence_slots[i] = s.slot
            self.batched_kv_valid[i] = s.kv_valid
            self.bank[i] = s.bank
            self.state[i] = s.state
            memcpy(&self.input_ids[row], s.tokens + s.kv_valid, s.count * sizeof(int32_t))
            for k in range(s.count):
                self.row_sequence[row + k] = <int32_t>i
                self.positions[row + k] = s.kv_valid + <int32_t>k
            row += s.count
            wanted = num_logit_rows(s)
            s.logit_row = <int32_t>logit_row if wanted > 0 else NO_ROW
            for k in range(row - max(wanted, 0), row):
                self.logit_rows[logit_row] = <int32_t>k
                logit_row += 1
        self.query_start_loc[n] = <int32_t>row
        self.header[0] = <uint32_t>row
        self.header[1] = <uint32_t>n
        self.header[2] = <uint32_t>logit_row
        self.num_rows = row
        self.num_logit_rows = logit_row


cdef inline Py_ssize_t num_logit_rows(const SequenceFields *s) noexcept nogil:
    """Rows from the last known token on predict something new; not positive within a prompt."""
    return s.kv_valid + s.count - s.num_tokens + 1
