from libc.stdint cimport int32_t

cpdef enum:
    NO_SLOT = -1
    NO_ROW = -1
    NO_CHECKPOINT = 0x7FFFFFFF
    UNBOUND = -1

cdef struct SequenceFields:
    int32_t *tokens          # [num_tokens + n_draft]; drafts lie behind the last known token
    int32_t *bindings        # [num_blocks] bundle of each block
    int32_t num_tokens
    int32_t num_blocks
    int32_t kv_valid         # leading positions whose K/V and GDN state are computed
    int32_t slot
    int32_t bank             # GDN bank that holds the state after kv_valid positions
    int32_t state            # tape that this step's rows are recorded on, or UNBOUND
    int32_t n_draft          # drafts to verify in this step
    int32_t block_rows       # rows that a drafter runs for them, from the last known token on
    int32_t replay           # rows of the bank's tape that kv_valid counts and the bank lacks
    int32_t next_checkpoint  # position that no prompt chunk runs across, or NO_CHECKPOINT
    int32_t count            # rows in this step
    int32_t logit_row        # first row of logits in this step, or NO_ROW


cdef class Sequence:
    cdef SequenceFields fields
    cdef int32_t max_tokens  # capacity of fields.tokens
    cdef int32_t max_blocks  # capacity of fields.bindings
    cdef list pending_checkpoints  # descending
    cdef readonly Py_ssize_t number
    cdef public object request
    cdef const int32_t[::1] view(self, Py_ssize_t count)
    cdef _next_checkpoint(self)


cdef inline int32_t pending(const SequenceFields *s) noexcept nogil:
    return s.num_tokens - s.kv_valid


cdef Py_ssize_t common_prefix(const int32_t *a, const int32_t *b, Py_ssize_t count) noexcept nogil
