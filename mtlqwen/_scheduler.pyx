"""Who advances by how many tokens in the next step."""

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc

from mtlqwen._sequence cimport Sequence, SequenceFields, pending


cdef int32_t generation_rows(SequenceFields **live, Py_ssize_t n) noexcept nogil:
    """Gives each generating sequence its token and its drafts; returns the rows used."""
    cdef int32_t rows = 0
    cdef Py_ssize_t i
    for i in range(n):
        live[i].count = 1 + live[i].n_draft if pending(live[i]) == 1 else 0
        rows += live[i].count
    return rows


cdef int32_t prompt_limit(const SequenceFields *s) noexcept nogil:
    """The longest chunk that this prompt may run: it ends at a checkpoint at the latest."""
    return min(pending(s), s.next_checkpoint - s.kv_valid)


cdef int32_t divide_rest(SequenceFields **live, Py_ssize_t n, int32_t rest) noexcept nogil:
    """Divides `rest` rows equally over the prompts; what one cannot use is handed on."""
    cdef int32_t given = 0, open_prompts = 0, share, extra
    cdef Py_ssize_t i
    for i in range(n):
        open_prompts += pending(live[i]) > 1
    while open_prompts > 0 and rest > 0:
        share = max(rest // open_prompts, 1)
        open_prompts = 0
        for i in range(n):
            if pending(live[i]) <= 1:
                continue
            extra = min(min(share, rest), prompt_limit(live[i]) - live[i].count)
            live[i].count += extra
            rest -= extra
            given += extra
            open_prompts += live[i].count < prompt_limit(live[i])
    return given


cdef int32_t divide_pass(
    SequenceFields **live, Py_ssize_t n, int32_t pass_tokens, double prompt_share
) noexcept nogil:
    cdef int32_t rows = generation_rows(live, n), rest = pass_tokens - rows, prompts = 0
    cdef Py_ssize_t i
    for i in range(n):
        prompts += pending(live[i]) > 1
    if rows > 0:
        rest = max(<int32_t>(rest * prompt_share), prompts)
    return rows + divide_rest(live, n, rest)


cdef class Scheduler:
    def __cinit__(self, int32_t pass_tokens, int32_t max_slots, double prompt_share=1.0):
        if not 1 <= max_slots <= pass_tokens:
            raise ValueError(
                f"{max_slots} slots and passes of {pass_tokens} tokens: every sequence advances in "
                "every step, so a pass needs at least one token per slot"
            )
        self.pass_tokens = pass_tokens
        self.max_slots = max_slots
        self.prompt_share = prompt_share
        self.live = <SequenceFields **>malloc(max_slots * sizeof(SequenceFields *))
        if self.live == NULL:
            raise MemoryError("scheduler")

    def __dealloc__(self):
        free(self.live)

    @property
    def prompt_share(self):
        return self._prompt_share

    @prompt_share.setter
    def prompt_share(self, double value):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"prompt_share {value} is not within 0 (generation) and 1 (prompts)")
        self._prompt_share = value

    def schedule(self, list live not None):
        cdef Py_ssize_t i, n = len(live)
        cdef Sequence sequence
        if n > self.max_slots:
            raise ValueError(f"{n} live sequences, {self.max_slots} slots")
        for i in range(n):
            sequence = live[i]
            self.live[i] = &sequence.fields
        return divide_pass(self.live, n, self.pass_tokens, self._prompt_share)
