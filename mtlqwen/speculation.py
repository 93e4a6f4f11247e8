"""How many tokens to guess ahead: from what guessing costs on this device, how often it is right.

A pass over 1 + n rows of a sequence verifies n drafts: its tokens are those of plain decoding, for
greedy requests and for sampled ones, because row by row the request itself chooses, and a draft
counts only where it is what the request chose anyway.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ._sequence import Sequence
from .arguments import an_integer, is_integer, misfit
from .errors import MtlqError

MAX_DRAFTS = 15  # of a sequence in one pass: blocks of 16 rows are the largest that drafters know

# How sure a sequence is of its drafts. Chosen on simulated acceptances from 0 to 90 %, some of them
# changing on the way, at a cost of 6 to 30 % a row, and on the answers of the demo model.
MEMORY = 0.9  # weight of the passes before the last that verified
FADING = 0.98  # of it all in a pass without drafts: a sequence that stood aside tries again
GUESS_WEIGHT = 1.0  # the proposer's likelihood counts as so many verified drafts
LEAST_LIKELY = 0.05  # a draft less likely to count is not worth asking the price of

# What drafting may lose against plain decoding, in its passes: trials are paid for, by gains too.
LOSS = 0.01  # per pass
FIRST_CREDIT = 1.0  # for the first trials
MOST_CREDIT = 5.0  # of gains: what good text may pay for the next that is not

LEAST_GAIN = 1.02  # of expected tokens per time over plain decoding: less is noise
COST_MEMORY = 0.8  # weight of the measurements before the last
FIRST_SLOPE = 0.1  # cost of a further row, of a pass with one row per sequence, before measured


class Proposer(Protocol):
    """Where drafts come from."""

    max_drafts: int
    likelihood: float  # that a draft is right, before any of a sequence was verified

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        """At most `count` tokens that may follow."""


class PromptLookup:
    """Drafts what followed the last few tokens where they appeared before: quoting, code edits."""

    max_drafts = MAX_DRAFTS
    likelihood = 0.5  # as seen on the answers of the demo model, for matches of 3 tokens

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return sequence.lookup(count)


class BlockDrafts:
    """Room for what a drafter on the device puts there before the target reads it."""

    likelihood = 0.7  # common for DFlash on chat

    def __init__(self, mask_id: int, block_size: int):
        self.max_drafts = min(MAX_DRAFTS, block_size - 1)
        self._masks = np.full(self.max_drafts, mask_id, np.int32)

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return self._masks[:count]


@dataclass(slots=True)
class Acceptance:
    """Running estimate that the next draft of a sequence is right, given those before it were."""

    hits: float = 0.0
    tries: float = 0.0

    def rate(self, likelihood: float) -> float:
        """`likelihood`: what to think before much was verified."""
        return (self.hits + GUESS_WEIGHT * likelihood) / (self.tries + GUESS_WEIGHT)

    def verified(self, num_drafts: int, accepted: int) -> None:
        """`accepted` of num_drafts were right, the one behind them, if any, was not."""
        self.hits = MEMORY * self.hits + accepted
        self.tries = MEMORY * self.tries + accepted + (accepted < num_drafts)

    def fade(self) -> None:
        """A pass without drafts."""
        self.hits *= FADING
        self.tries *= FADING


@dataclass
class CostCurve:
    """Time of a pass over the number of its rows, for one number of generating sequences."""

    num_sequences: int
    measured_ns: dict[int, float] = field(default_factory=dict)
    _rows: list[int] = field(default_factory=list)  # measured, ascending

    def measure(self, num_rows: int, ns: int) -> None:
        last = self.measured_ns.get(num_rows)
        if last is None:
            insort(self._rows, num_rows)
            self.measured_ns[num_rows] = float(ns)
        else:  # a pass that something else held up tells little
            seen = min(float(ns), 2 * last)
            self.measured_ns[num_rows] = COST_MEMORY * last + (1 - COST_MEMORY) * seen

    def ns(self, num_rows: int) -> float:
        """Between measured numbers of rows interpolated, beyond them as the curve rises so far."""
        known = self.measured_ns.get(num_rows)
        if known is not None:
            return known
        place = bisect(self._rows, num_rows)
        first, below = self._rows[0], self._rows[place - 1]
        if place < len(self._rows):
            above = self._rows[place]
            slope = (self.measured_ns[above] - self.measured_ns[below]) / (above - below)
        else:
            guess = FIRST_SLOPE * self.measured_ns[first] / self.num_sequences
            slope = guess
            if below > first:  # no row is nearly free, whatever was measured
                rise = self.measured_ns[below] - self.measured_ns[first]
                slope = max(rise / (below - first), guess / 8)
        return self.measured_ns[below] + slope * (num_rows - below)


class Speculation:
    """Gives each generating sequence its drafts, pass by pass.

    width: drafts of each sequence in each pass; None: as many as pay.
    """

    def __init__(self, proposer: Proposer, pass_tokens: int, width: int | None = None):
        if width is not None and not is_integer(width, 0, MAX_DRAFTS):
            raise MtlqError(misfit("draft_width", width, an_integer(0, MAX_DRAFTS)))
        self.proposer = proposer
        self.pass_tokens = pass_tokens
        self.width = width
        self.max_drafts = min(
            MAX_DRAFTS, proposer.max_drafts, MAX_DRAFTS if width is None else width
        )
        self._curves: dict[int, CostCurve] = {}
        self._credit = FIRST_CREDIT  # passes of plain decoding
        self._num_accepted = 0  # in this pass

    def draft(self, live: Items[Sequence]) -> None:
        """Puts drafts behind the last token of the sequences that generate.

        Prompts come first: drafts take the rows of a pass that all pending tokens leave.
        """
        self._num_accepted = 0
        room = self.pass_tokens - sum(sequence.pending for sequence in live)
        if room > 0 and self.max_drafts > 0 and (self.width is not None or self._may_try(live)):
            self._propose(live, room)
        if self.width is None:
            for sequence in live:
                if sequence.n_draft == 0:
                    sequence.request.acceptance.fade()

    def verified(self, sequence: Sequence, num_drafts: int, accepted: int) -> None:
        self._num_accepted += accepted
        if self.width is None:
            sequence.request.acceptance.verified(num_drafts, accepted)

    def measured(self, num_sequences: int, num_rows: int, num_injected: int, ns: int) -> None:
        """A pass of generating sequences only, whose drafts have been verified, took so long."""
        if self.width is not None:
            return
        curve = self._curves.get(num_sequences)
        if curve is None:
            curve = self._curves[num_sequences] = CostCurve(num_sequences)
        if num_injected <= (1 + MAX_DRAFTS) * num_sequences:  # else: work of many passes
            curve.measure(num_rows, ns)
        if num_rows == num_sequences:
            gain = LOSS
        elif num_sequences in curve.measured_ns:
            gain = 1 + self._num_accepted / num_sequences
            gain -= curve.ns(num_rows) / curve.ns(num_sequences)
        else:
            gain = 0.0
        self._credit = min(self._credit + gain, MOST_CREDIT)

    def _may_try(self, live: Items[Sequence]) -> bool:
        """Whether plain decoding has been measured, and drafting is not in debt to it."""
        curve = self._curves.get(len(live))
        return self._credit > 0 and curve is not None and len(live) in curve.measured_ns

    def _propose(self, live: Items[Sequence], room: int) -> None:
        proposed = [
            (sequence, self.proposer.propose(sequence, limit))
            for sequence in live
            if (limit := self._limit(sequence)) > 0
        ]
        proposed = [(sequence, drafts) for sequence, drafts in proposed if len(drafts)]
        if not proposed:
            return
        limits = [len(drafts) for _, drafts in proposed]
        if self.width is None:
            likelihood = self.proposer.likelihood
            rates = [sequence.request.acceptance.rate(likelihood) for sequence, _ in proposed]
            counts = self._paying(self._curves[len(live)], rates, limits, room)
        else:
            counts = _shared_out(limits, room)
        for (sequence, drafts), count in zip(proposed, counts, strict=True):
            if count:
                sequence.draft(drafts[:count])

    def _limit(self, sequence: Sequence) -> int:
        """Most drafts: no pass runs beyond the last token that may be generated, or a
        checkpoint.
        """
        if sequence.pending != 1 or sequence.kv_valid == 0:
            return 0
        ahead = sequence.next_checkpoint - sequence.kv_valid - 1
        return min(self.max_drafts, sequence.request.num_left - 1, ahead)

    def _paying(
        self, curve: CostCurve, rates: list[float], limits: list[int], room: int
    ) -> list[int]:
        """How many drafts of each sequence give the most expected tokens per time.

        The next draft is taken where it is most likely to count, as long as that helps.
        """
        num_rows = curve.num_sequences
        expected = float(num_rows)
        counts, likely = [0] * len(rates), rates.copy()
        best, best_counts = LEAST_GAIN * expected / curve.ns(num_rows), counts.copy()
        for _ in range(room):
            chosen = max(range(len(rates)), key=likely.__getitem__)
            if likely[chosen] < LEAST_LIKELY:
                break
            expected += likely[chosen]
            num_rows += 1
            counts[chosen] += 1
            likely[chosen] *= rates[chosen] if counts[chosen] < limits[chosen] else 0.0
            if expected > best * curve.ns(num_rows):
                best, best_counts = expected / curve.ns(num_rows), counts.copy()
        return best_counts


def _shared_out(limits: list[int], room: int) -> list[int]:
    """Of each limit as much as `room` has for all."""
    counts: list[int] = []
    for position, limit in enumerate(limits):
        counts.append(min(limit, room // (len(limits) - position)))
        room -= counts[-1]
    return counts
