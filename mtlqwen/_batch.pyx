"""Packs the rows of one step into the device's batch arrays."""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from mtlqwen._features cimport FeatureLog
from mtlqwen._sequence cimport NO_ROW, Sequence, SequenceFields


cdef class Batch:
    def __cinit__(self, arrays, drafting=None):
        self.header = arrays.header
        self.input_ids = arrays.input_ids
        self.row_sequence = arrays.row_sequence
        self.positions = arrays.positions
        self.query_start_loc = arrays.query_start_loc
        self.sequence_slots = arrays.sequence_slots
        self.batched_kv_valid = arrays.batched_kv_valid
        self.bank = arrays.bank
        self.state = arrays.state
        self.replay = arrays.pending
        self.logit_rows = arrays.logit_rows
        if drafting is not None:
            self.features = FeatureLog(drafting.context)
            drafts = drafting.drafts
            self.draft_header = drafts.header
            self.draft_ids = drafts.input_ids
            self.draft_sequence = drafts.row_sequence
            self.draft_positions = drafts.positions
            self.draft_start_loc = drafts.query_start_loc
            self.draft_slots = drafts.sequence_slots
            self.draft_kv_valid = drafts.batched_kv_valid
            self.draft_rows = drafts.logit_rows
            self.target_rows = drafts.target_rows
            self.num_common_tokens = drafting.num_common_tokens
            self.recent_tokens = drafting.recent_tokens
        cdef Py_ssize_t max_sequences = self.sequence_slots.shape[0]
        self.live = <SequenceFields **>malloc(max_sequences * sizeof(SequenceFields *))
        if self.live == NULL:
            raise MemoryError("batch")

    def __dealloc__(self):
        free(self.live)

    def pack(self, list live not None, bint inject=False):
        cdef Py_ssize_t i, n = len(live), rows = 0, logit_rows = 0, block_rows = 0
        cdef Sequence sequence
        if n > self.sequence_slots.shape[0]:
            raise ValueError(f"{n} sequences, room for {self.sequence_slots.shape[0]}")
        for i in range(n):
            sequence = live[i]
            self.live[i] = &sequence.fields
            rows += sequence.fields.count
            logit_rows += max(num_logit_rows(&sequence.fields), 0)
            block_rows += sequence.fields.block_rows
        if rows > self.input_ids.shape[0] or logit_rows > self.logit_rows.shape[0]:
            raise ValueError(
                f"{rows} rows with {logit_rows} rows of logits, room for {self.input_ids.shape[0]} "
                f"with {self.logit_rows.shape[0]}"
            )
        if self.features is not None and block_rows > self.draft_ids.shape[0]:
            raise ValueError(f"{block_rows} rows of blocks, room for {self.draft_ids.shape[0]}")
        self.num_sequences = n
        # The GIL stays: to get it back from another thread would take longer than all of this.
        self.fill(n)
        if self.features is not None:
            self.fill_drafts(n)
            inject = inject or self.draft_header[0] > 0
            self.header[3] = self.features.open_pass(rows, inject)
            self.num_injected = self.features.header[0]
        return rows

    def keep_features(self):
        cdef Py_ssize_t i, k
        cdef const SequenceFields *s
        if self.features is None:
            return
        self.features.close_pass(self.num_rows)
        for i in range(self.num_sequences):
            s = self.live[i]
            for k in range(s.kv_valid - self.batched_kv_valid[i]):
                self.features.add(
                    self.query_start_loc[i] + k, s.slot, self.batched_kv_valid[i] + <int32_t>k
                )

    def drafts(self, Sequence sequence not None):
        cdef const SequenceFields *s = &sequence.fields
        if s.n_draft == 0:
            return []
        cdef Py_ssize_t row = self.logit_rows[s.logit_row] + 1
        return [self.input_ids[row + i] for i in range(s.n_draft)]

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
            self.replay[i] = s.replay
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
        self.header[3] = 0
        self.num_rows = row
        self.num_logit_rows = logit_row

    cdef void fill_drafts(self, Py_ssize_t n) noexcept nogil:
        """A block for each sequence with drafts: its last known token, then what stands for them.

        What stands for the last draft goes on to the block's end: a drafter looks at all rows.
        """
        cdef Py_ssize_t i, k, row = 0, sequence = 0, draft = 0
        cdef uint32_t most_rare = 0
        cdef SequenceFields *s
        for i in range(n):
            s = self.live[i]
            if s.n_draft == 0:
                continue
            most_rare = max(most_rare, num_rare(s, self.num_common_tokens, self.recent_tokens))
            self.draft_start_loc[sequence] = <int32_t>row
            self.draft_slots[sequence] = s.slot
            self.draft_kv_valid[sequence] = s.kv_valid
            for k in range(s.block_rows):
                self.draft_ids[row] = s.tokens[s.kv_valid + min(k, <Py_ssize_t>s.n_draft)]
                self.draft_sequence[row] = <int32_t>sequence
                self.draft_positions[row] = s.kv_valid + <int32_t>k
                if 0 < k <= s.n_draft:
                    self.draft_rows[draft] = <int32_t>row
                    self.target_rows[draft] = self.query_start_loc[i] + <int32_t>k
                    draft += 1
                row += 1
            sequence += 1
        self.draft_start_loc[sequence] = <int32_t>row
        self.draft_header[0] = <uint32_t>row
        self.draft_header[1] = <uint32_t>sequence
        self.draft_header[2] = <uint32_t>draft
        self.draft_header[3] = most_rare


cdef uint32_t num_rare(const SequenceFields *s, int32_t num_common, int32_t recent) noexcept nogil:
    """Tokens from num_common on among the most recent ones."""
    cdef uint32_t count = 0
    cdef Py_ssize_t i
    for i in range(max(s.num_tokens - recent, 0), s.num_tokens):
        count += s.tokens[i] >= num_common
    return count


cdef inline Py_ssize_t num_logit_rows(const SequenceFields *s) noexcept nogil:
    """Rows from the last known token on predict something new; not positive within a prompt."""
    return min(s.kv_valid + s.count - s.num_tokens + 1, s.count)
