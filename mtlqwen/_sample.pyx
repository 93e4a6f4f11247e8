"""Choosing the next token from a row of logits; `sampling.py` says what is done, in which order.

Every filter keeps the tokens down to some rank, so a filtered distribution is the tokens above a
threshold, found by selection, never by sorting. Rows are read in blocks that a compiler vectorises;
a block with an adjusted token is patched in a copy. Distributions are ordered by token id, so a
draw depends on probabilities alone; exp is our own, so that its bits are the same everywhere.
"""

import secrets

import numpy as np

from mtlqwen.errors import MtlqError, RequestError
from mtlqwen.sampling import SamplingParams

cimport cython
from libc.math cimport INFINITY, log, nextafterf
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove

from mtlqwen._candidates cimport (
    Candidates, drop_below, find, grown, keep_best, mix, release, reserve, weigh, weight_of
)

cdef enum:
    BLOCK = 64
    LANES = 16  # partial sums of a block: their order is part of the result
    DRAWS = 4   # random numbers per position

cdef double FIRST_GUESS = 1e-3  # no lighter token is needed for top-p, mostly
cdef double LOG2_E = 1.4426950408889634


cdef double uniform(uint64_t seed, uint64_t position, uint64_t draw) noexcept nogil:
    """In [0, 1), for each `draw` below DRAWS of each position: SplitMix64, entered at any place."""
    cdef uint64_t gamma = <uint64_t>0x9E3779B97F4A7C15ULL
    cdef uint64_t state = mix(seed + gamma) + (position * DRAWS + draw + 1) * gamma
    return <double>(mix(state) >> 11) * (1.0 / 9007199254740992.0)


@cython.final
cdef class Sampler:
    def __cinit__(self, params, Py_ssize_t num_tokens, *, prompt_ids=()):
        if num_tokens < 1:
            raise ValueError(f"num_tokens is {num_tokens}; a vocabulary has at least one token")
        self.num_tokens = num_tokens
        self.seed = secrets.randbits(64) if params.seed is None else params.seed % (1 << 64)
        self.temperature = params.temperature or 1.0
        self.scale = min(LOG2_E / self.temperature, 1e30)
        self.top_k = 1 if params.temperature == 0.0 else params.top_k
        if self.top_k >= num_tokens:
            self.top_k = 0 if num_tokens > 1 else 1
        self.top_p = params.top_p
        self.min_p = params.min_p
        self.repetition_penalty = params.repetition_penalty
        self.presence_penalty = params.presence_penalty
        self.frequency_penalty = params.frequency_penalty
        self.has_penalty = params.has_penalty
        self.num_blocks = (num_tokens + BLOCK - 1) // BLOCK
        self.block_mass = <double*>grown(NULL, self.num_blocks * sizeof(double))
        self._adjust(params, prompt_ids)
        if params.logprobs is not None:
            self.raw = Sampler(SamplingParams(temperature=1.0), num_tokens)

    def _adjust(self, params, prompt_ids):
        for token, bias in params.logit_bias.items():
            if token >= self.num_tokens:
                raise RequestError(
                    f"logit_bias names token {token}; ids go from 0 to {self.num_tokens - 1}",
                    param="logit_bias",
                )
            self.adjustment_of(token).bias = bias
        if self.repetition_penalty != 1.0:
            for token in np.unique(np.asarray(prompt_ids, np.int64)).tolist():
                self._check_token(token)
                self.adjustment_of(token).seen = True

    def __dealloc__(self):
        release(&self.candidates)
        free(self.adjustments)
        free(self.block_mass)

    def sample(self, const float[::1] logits not None):
        self._check_row(logits)
        cdef int32_t token
        with nogil:
            token = self.sample_row(&logits[0])
        return token

    def accept(self, Py_ssize_t token):
        self._check_token(token)
        cdef Adjustment* adjustment
        if self.has_penalty:
            adjustment = self.adjustment_of(<int32_t>token)
            adjustment.count += 1
            adjustment.seen = True
        self.position += 1

    def distribution(self, const float[::1] logits not None):
        self._check_row(logits)
        with nogil:
            self.filter(&logits[0])
        cdef Py_ssize_t i, count = self.num_tokens if self.is_dense else self.candidates.count
        ids = np.arange(count, dtype=np.int32)
        probabilities = np.empty(count)
        cdef int32_t[::1] ids_view = ids
        cdef double[::1] probabilities_view = probabilities
        for i in range(count):
            if not self.is_dense:
                ids_view[i] = self.candidates.ids[i]
            probabilities_view[i] = self.probability(&logits[0], ids_view[i])
        return ids, probabilities

    def logprobs(self, const float[::1] logits not None, Py_ssize_t token, Py_ssize_t count):
        if self.raw is None:
            raise ValueError("logprobs() needs SamplingParams(logprobs=...)")
        self._check_row(logits)
        self._check_token(token)
        cdef Sampler raw = self.raw
        cdef Candidates* best = &raw.candidates
        cdef double log_sum
        with nogil:
            raw.gather(&logits[0], -INFINITY, count if count > 0 else 1)
            raw.find_peak()
            log_sum = raw.peak + log(raw.weigh_row(&logits[0]))
        top = sorted((-best.logits[i], best.ids[i]) for i in range(best.count))
        return logits[token] - log_sum, [(i, -logit - log_sum) for logit, i in top[:count]]

    def _check_row(self, const float[::1] logits):
        if logits.shape[0] < self.num_tokens:
            raise ValueError(f"the row has {logits.shape[0]} logits, not {self.num_tokens}")

    def _check_token(self, token):
        if not 0 <= token < self.num_tokens:
            raise ValueError(f"token {token} is not in 0 to {self.num_tokens - 1}")

    # ---- from a row to a token, without the GIL --------------------------------------------------

    cdef int32_t sample_row(self, const float* logits) except -1 nogil:
        self.filter(logits)
        return self.draw(logits, uniform(self.seed, self.position, 0))

    cdef int filter(self, const float* logits) except -1 nogil:
        """Makes the filtered distribution of a row of num_tokens logits."""
        cdef bint has_top_p = self.top_p < 1.0
        cdef double mass = 0.0
        self.gather(logits, -INFINITY, self.top_k if self.top_k > 0 else 1)
        self.find_peak()
        self.is_dense = self.top_k == 0 and not has_top_p and self.min_p <= 0.0
        if self.top_k > 0:
            mass = weigh(&self.candidates, self.peak, self.scale)
        elif self.is_dense or has_top_p:
            mass = self.weigh_row(logits)
        if self.is_dense:
            self.total = mass
            return 0
        if self.top_k == 0:
            self.gather_enough(logits, mass)
        if has_top_p:
            keep_best(&self.candidates, self.top_p_target(mass))
        self.total = drop_below(&self.candidates, self.min_p)
        return 0

    cdef int gather_enough(self, const float* logits, double mass) except -1 nogil:
        """Candidates among which are all that top-p of `mass`, or else min-p, keeps."""
        # All lighter tokens together are less than what top-p drops.
        cdef double floor = (1.0 - self.top_p) * mass / self.num_tokens
        if self.top_p >= 1.0:
            self.gather_from(logits, self.min_p)
        elif self.gather_from(logits, max(FIRST_GUESS, floor)) < self.top_p_target(mass):
            self.gather_from(logits, floor)
        return 0

    cdef double gather_from(self, const float* logits, double least) except -1.0 nogil:
        """Candidates: all tokens of at least that weight, and some below; their weight."""
        cdef double threshold = self.peak + log(0.5 * least) * self.temperature
        # Rounded down: beside a huge peak the difference would be lost.
        self.gather(logits, nextafterf(<float>threshold, -INFINITY), 0)
        return weigh(&self.candidates, self.peak, self.scale)

    cdef double top_p_target(self, double mass) noexcept nogil:
        return max(self.top_p * mass, 1.0)  # the most likely token weighs 1 and always stays

    cdef int32_t draw(self, const float* logits, double uniform) noexcept nogil:
        """The token at `uniform` of the way through the distribution that filter() made."""
        cdef Candidates* c = &self.candidates
        cdef double left = uniform * self.total
        cdef Py_ssize_t i, chosen = 0
        if self.is_dense:
            return self.draw_dense(logits, left)
        for i in range(c.count):
            if c.weights[i] > 0.0:
                chosen = i
                left -= c.weights[i]
                if left < 0.0:
                    break
        return c.ids[chosen]

    cdef int32_t draw_dense(self, const float* logits, double left) noexcept nogil:
        cdef float patched[BLOCK]
        cdef float weights[BLOCK]
        cdef Py_ssize_t i, base, cursor, chosen = 0
        for i in range(self.num_blocks):
            if self.block_mass[i] > 0.0:
                chosen = i
                if left < self.block_mass[i]:
                    break
                left -= self.block_mass[i]
        base = chosen * BLOCK
        cursor = self.place_of(<int32_t>base)
        self.weigh_block(self.block(logits, base, &cursor, patched), weights)
        chosen = 0
        for i in range(BLOCK):
            if weights[i] > 0.0:
                chosen = i
                left -= weights[i]
                if left < 0.0:
                    break
        return <int32_t>(base + chosen)

    cdef double probability(self, const float* logits, int32_t token) noexcept nogil:
        """What filter() left to `token` of the row."""
        cdef Py_ssize_t i
        cdef float logit = logits[token]
        if not self.is_dense:
            i = find(&self.candidates, token)
            return self.candidates.weights[i] / self.total if i >= 0 else 0.0
        i = self.place_of(token)
        if i < self.num_adjustments and self.adjustments[i].token == token:
            logit = self.adjusted(logit, &self.adjustments[i])
        return weight_of(logit, self.peak, self.scale) / self.total

    # ---- the passes over a row -------------------------------------------------------------------

    cdef const float* block(
        self, const float* logits, Py_ssize_t base, Py_ssize_t* cursor, float* patched
    ) noexcept nogil:
        """BLOCK adjusted logits from `base` on, -inf after the last token.

        `cursor` is the first adjustment from `base` on; `patched` is room for a copy.
        """
        cdef Py_ssize_t end = base + BLOCK, i
        cdef bint is_adjusted = (
            cursor[0] < self.num_adjustments and self.adjustments[cursor[0]].token < end
        )
        if end <= self.num_tokens and not is_adjusted:
            return logits + base
        end = min(end, self.num_tokens)
        for i in range(BLOCK):
            patched[i] = logits[base + i] if base + i < end else -INFINITY
        while cursor[0] < self.num_adjustments and self.adjustments[cursor[0]].token < end:
            i = self.adjustments[cursor[0]].token
            patched[i - base] = self.adjusted(logits[i], &self.adjustments[cursor[0]])
            cursor[0] += 1
        return patched

    cdef float adjusted(self, float logit, const Adjustment* adjustment) noexcept nogil:
        if adjustment.seen and self.repetition_penalty != 1.0:
            if logit > 0.0:
                logit = logit / self.repetition_penalty
            else:
                logit = logit * self.repetition_penalty
        if adjustment.count > 0:
            logit -= self.frequency_penalty * adjustment.count + self.presence_penalty
        return logit + adjustment.bias

    cdef int gather(self, const float* logits, float threshold, Py_ssize_t limit) except -1 nogil:
        """Candidates, of weight 1: the tokens above `threshold`, the `limit` best if set."""
        cdef float patched[BLOCK]
        cdef const float* row
        cdef Candidates* c = &self.candidates
        cdef Py_ssize_t n, i, base, cursor = 0
        cdef Py_ssize_t room = max(4 * limit, 256)
        cdef int32_t is_below
        c.count = 0
        for n in range(self.num_blocks):
            base = n * BLOCK
            row = self.block(logits, base, &cursor, patched)
            is_below = 1
            for i in range(BLOCK):  # nan is not
                is_below &= row[i] <= threshold
            if is_below:
                continue
            reserve(c, c.count + BLOCK)
            for i in range(BLOCK):
                if not (row[i] <= threshold):
                    if not (row[i] < INFINITY):
                        refuse(base + i, row[i])
                    c.ids[c.count] = <int32_t>(base + i)
                    c.logits[c.count] = row[i]
                    c.weights[c.count] = 1.0
                    c.count += 1
            if limit > 0 and c.count > room:
                threshold = keep_best(c, limit)
        if limit > 0 and c.count > limit:
            keep_best(c, limit)
        if c.count == 0:
            refuse(0, -INFINITY)
        return 0

    cdef void find_peak(self) noexcept nogil:
        cdef Py_ssize_t i
        self.peak = self.candidates.logits[0]
        for i in range(1, self.candidates.count):
            self.peak = max(self.peak, self.candidates.logits[i])

    cdef inline void weigh_block(self, const float* logits, float* weights) noexcept nogil:
        cdef float peak = self.peak, scale = self.scale
        cdef Py_ssize_t i
        for i in range(BLOCK):
            weights[i] = weight_of(logits[i], peak, scale)

    cdef double weigh_row(self, const float* logits) noexcept nogil:
        """The weight of each block and of all; of them alone depends where a draw falls."""
        cdef float patched[BLOCK]
        cdef float weights[BLOCK]
        cdef float lanes[LANES]
        cdef Py_ssize_t n, i, base, cursor = 0
        cdef double mass, total = 0.0
        for n in range(self.num_blocks):
            self.weigh_block(self.block(logits, n * BLOCK, &cursor, patched), weights)
            for i in range(LANES):
                lanes[i] = (weights[i] + weights[LANES + i]) + (
                    weights[2 * LANES + i] + weights[3 * LANES + i]
                )
            mass = 0.0
            for i in range(LANES):
                mass += lanes[i]
            self.block_mass[n] = mass
            total += mass
        return total

    # ---- memory ----------------------------------------------------------------------------------

    cdef Py_ssize_t place_of(self, int32_t token) noexcept nogil:
        """Index of the first adjustment from `token` on."""
        cdef Py_ssize_t low = 0, high = self.num_adjustments, middle
        while low < high:
            middle = (low + high) // 2
            if self.adjustments[middle].token < token:
                low = middle + 1
            else:
                high = middle
        return low

    cdef Adjustment* adjustment_of(self, int32_t token) except NULL nogil:
        """The adjustment of `token`, made if there is none."""
        cdef Py_ssize_t place = self.place_of(token), num_after = self.num_adjustments - place
        if num_after > 0 and self.adjustments[place].token == token:
            return &self.adjustments[place]
        if self.num_adjustments == self.max_adjustments:
            self.max_adjustments = max(16, 2 * self.max_adjustments)
            self.adjustments = <Adjustment*>grown(
                self.adjustments, self.max_adjustments * sizeof(Adjustment)
            )
        cdef Adjustment* adjustment = &self.adjustments[place]
        memmove(adjustment + 1, adjustment, num_after * sizeof(Adjustment))
        adjustment[0] = Adjustment(token=token, count=0, seen=False, bias=0.0)
        self.num_adjustments += 1
        return adjustment


cdef int refuse(Py_ssize_t token, float logit) except -1 nogil:
    with gil:
        if logit == -INFINITY:
            raise MtlqError("every logit is -inf: no token can be chosen")
        raise MtlqError(
            f"the logit of token {token} is {logit}: the model's weights or a kernel are faulty"
        )
