"""A request inside the engine: its tokens, how many of them are computed, and where that lives."""

from libc.stdint cimport int32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import numpy as np

cdef enum:  # tokens that the end of a text shares with an earlier place
    MIN_MATCH = 3
    MAX_MATCH = 16


cdef Py_ssize_t common_prefix(const int32_t *a, const int32_t *b, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        if a[i] != b[i]:
            return i
    return count


cdef Py_ssize_t continuation(const SequenceFields *s) noexcept nogil:
    """Where the text went on after the latest of the longest earlier matches of its end; 0 if none."""
    cdef const int32_t *last = s.tokens + s.num_tokens - 1
    cdef Py_ssize_t end, length, place = 0, best = MIN_MATCH - 1
    for end in range(s.num_tokens - 2, -1, -1):
        if end < best:
            break
        if s.tokens[end] != last[0] or s.tokens[end - best] != last[-best]:
            continue
        length = 1
        while length <= end and length < MAX_MATCH and s.tokens[end - length] == last[-length]:
            length += 1
        if length > best:
            best = length
            place = end + 1
            if best == MAX_MATCH:
                break
    return place


cdef int grow(int32_t **data, int32_t *capacity, Py_ssize_t wanted) except -1:
    """Makes room for `wanted` ids, at least doubling."""
    if wanted <= capacity[0]:
        return 0
    wanted = max(wanted, 2 * capacity[0])
    cdef int32_t *new = <int32_t *>realloc(data[0], wanted * sizeof(int32_t))
    if new == NULL:
        raise MemoryError(f"{wanted} token ids of a sequence")
    data[0] = new
    capacity[0] = <int32_t>wanted
    return 0


cdef class Sequence:
    def __cinit__(self, const int32_t[::1] ids not None, Py_ssize_t number, request=None):
        cdef SequenceFields *s = &self.fields
        if ids.shape[0] == 0:
            raise ValueError("a sequence has at least one token")
        s.slot = NO_SLOT
        s.state = UNBOUND
        s.next_checkpoint = NO_CHECKPOINT
        s.logit_row = NO_ROW
        s.num_tokens = <int32_t>ids.shape[0]
        grow(&s.tokens, &self.max_tokens, ids.shape[0] + 16)
        memcpy(s.tokens, &ids[0], ids.shape[0] * sizeof(int32_t))
        self.pending_checkpoints = []
        self.number = number
        self.request = request

    def __dealloc__(self):
        free(self.fields.tokens)
        free(self.fields.bindings)

    # ---- questions -------------------------------------------------------------------------

    @property
    def num_tokens(self):
        return self.fields.num_tokens

    @property
    def kv_valid(self):
        return self.fields.kv_valid

    @property
    def slot(self):
        return self.fields.slot

    @property
    def bank(self):
        return self.fields.bank

    @property
    def state(self):
        return self.fields.state

    @property
    def n_draft(self):
        return self.fields.n_draft

    @property
    def replay(self):
        return self.fields.replay

    @property
    def count(self):
        return self.fields.count

    @property
    def logit_row(self):
        return self.fields.logit_row

    @property
    def num_blocks(self):
        return self.fields.num_blocks

    @property
    def pending(self):
        return pending(&self.fields)

    @property
    def active(self):
        return self.fields.slot != NO_SLOT

    @property
    def busy(self):
        return self.fields.count > 0

    @property
    def stage(self):
        if self.fields.slot == NO_SLOT:
            return "waiting"
        return "t.g" if pending(&self.fields) == 1 else "p.p"

    @property
    def next_checkpoint(self):
        return self.fields.next_checkpoint

    @property
    def at_checkpoint(self):
        return self.fields.kv_valid == self.fields.next_checkpoint

    @property
    def bindings(self):
        return [self.fields.bindings[i] for i in range(self.fields.num_blocks)]

    @property
    def last_bundle(self):
        return self.fields.bindings[self.fields.num_blocks - 1] if self.fields.num_blocks else -1

    def tokens(self, count=None):
        cdef Py_ssize_t n = self.fields.num_tokens if count is None else count
        if not 0 <= n <= self.fields.num_tokens:
            raise IndexError(f"{n} of {self.fields.num_tokens} tokens")
        return np.array(self.view(n), np.int32) if n else np.empty(0, np.int32)

    def blocks_missing(self, int32_t block_tokens):
        cdef SequenceFields *s = &self.fields
        cdef int32_t end = s.kv_valid + max(s.count, s.block_rows)
        return (end + block_tokens - 1) // block_tokens - s.num_blocks

    def shared_tokens(self, Sequence other not None):
        cdef Py_ssize_t count = min(self.fields.num_tokens, other.fields.num_tokens)
        return common_prefix(self.fields.tokens, other.fields.tokens, count)

    def lookup(self, Py_ssize_t count):
        cdef Py_ssize_t place = continuation(&self.fields)
        if place == 0:
            return np.empty(0, np.int32)
        end = min(place + count, self.fields.num_tokens)
        return np.array(self.view(end)[place:], np.int32)

    cdef const int32_t[::1] view(self, Py_ssize_t count):
        """The first `count` > 0 tokens, valid until the next append."""
        return <int32_t[:count]>self.fields.tokens

    # ---- actions ---------------------------------------------------------------------------

    def append(self, int32_t token):
        cdef SequenceFields *s = &self.fields
        grow(&s.tokens, &self.max_tokens, s.num_tokens + 1)
        s.tokens[s.num_tokens] = token
        s.num_tokens = s.num_tokens + 1

    def bind(self, int32_t bundle):
        cdef SequenceFields *s = &self.fields
        grow(&s.bindings, &self.max_blocks, s.num_blocks + 1)
        s.bindings[s.num_blocks] = bundle
        s.num_blocks = s.num_blocks + 1

    def start(self, int32_t slot):
        self.fields.slot = slot

    def restore(self, int32_t kv_valid):
        if not 0 <= kv_valid < self.fields.num_tokens:
            total = self.fields.num_tokens
            raise ValueError(f"{kv_valid} of {total} tokens: none is left to compute")
        self.fields.kv_valid = kv_valid

    def stop(self):
        cdef SequenceFields *s = &self.fields
        s.slot = NO_SLOT
        s.num_blocks = 0
        s.kv_valid = 0
        s.bank = 0
        s.count = 0
        s.replay = 0
        self.drop_drafts()
        s.logit_row = NO_ROW
        self.set_checkpoints(())

    def draft(self, const int32_t[::1] tokens not None, int32_t block_rows=0):
        cdef SequenceFields *s = &self.fields
        cdef Py_ssize_t count = tokens.shape[0]
        if count == 0 or pending(s) != 1 or s.kv_valid == 0:
            raise ValueError(f"{count} drafts with {pending(s)} of {s.num_tokens} tokens pending")
        if 0 < block_rows <= count:
            raise ValueError(f"{count} drafts of a block of {block_rows} rows")
        grow(&s.tokens, &self.max_tokens, s.num_tokens + count)
        memcpy(s.tokens + s.num_tokens, &tokens[0], count * sizeof(int32_t))
        s.n_draft = <int32_t>count
        s.block_rows = block_rows
        s.state = s.slot

    def drop_drafts(self):
        cdef SequenceFields *s = &self.fields
        s.count = s.count - min(s.count, s.n_draft)
        s.n_draft = 0
        s.block_rows = 0
        s.state = UNBOUND

    def advance(self, int32_t accepted=0):
        cdef SequenceFields *s = &self.fields
        if not 0 <= accepted <= s.n_draft:
            raise ValueError(f"{accepted} of {s.n_draft} drafts accepted")
        if s.count == 0:
            return
        s.replay = 1 + accepted if s.n_draft > 0 else 0
        s.kv_valid = s.kv_valid + s.count - s.n_draft + accepted
        s.bank = s.bank ^ 1
        s.count = 0
        s.n_draft = 0
        s.block_rows = 0
        s.state = UNBOUND

    def flush(self):
        self.fields.bank = self.fields.bank ^ 1
        self.fields.replay = 0

    def set_checkpoints(self, positions):
        self.pending_checkpoints = sorted(
            {p for p in positions if p > self.fields.kv_valid}, reverse=True
        )
        self._next_checkpoint()

    def add_checkpoint(self, int32_t position):
        self.set_checkpoints([*self.pending_checkpoints, position])

    def pass_checkpoint(self):
        self.pending_checkpoints.pop()
        self._next_checkpoint()

    cdef _next_checkpoint(self):
        cdef list left = self.pending_checkpoints
        self.fields.next_checkpoint = left[len(left) - 1] if left else NO_CHECKPOINT
