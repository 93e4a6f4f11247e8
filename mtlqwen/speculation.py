"""How many tokens to guess ahead: from what guessing costs on this device, how often it is right.

A pass over 1 + n rows of a sequence verifies n drafts: its tokens are those of plain decoding, for
greedy requests and for sampled ones, because row by row the request itself chooses, and a draft
counts only where it is what the request chose anyway.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ._cost_curve import CostCurve
from ._sequence import Sequence
from .arguments import an_integer, is_integer, misfit
from .errors import MtlqError

MAX_DRAFTS = 15  # of a sequence in one pass: blocks of 16 rows are the largest that drafters know

# How sure a sequence is of its drafts, and below what trials may lose: chosen on simulated rates
# and noise, and on the answers of the demo model (docs/benchmarks.md, "Standing aside").
MEMORY = 0.9  # weight of the passes before the last that verified
FADING = 0.98  # of it all in a pass without drafts: a sequence that stood aside tries again
GUESS_WEIGHT = 3.0  # the proposer's likelihood counts as so many verified drafts

# What drafting may lose against plain decoding, in its passes: trials are paid for, by gains too.
LOSS = 0.006  # per pass
FIRST_CREDIT = 3.0  # for the first trials, which meet cold memory
MOST_CREDIT = 8.0  # of gains: what good text may pay for the next that is not


class Proposer(Protocol):
    """Where drafts come from."""

    max_drafts: int
    block_rows: int  # of a drafter on the device that makes them; 0: none does
    # That the first draft is right, and a further one, before any of a sequence was verified.
    likelihood: tuple[float, float]

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        """At most `count` tokens that may follow."""


class PromptLookup:
    """Drafts what followed the last few tokens where they appeared before: quoting, code edits."""

    max_drafts = MAX_DRAFTS
    block_rows = 0
    likelihood = 0.5, 0.7  # a little more than on the answers of the demo model, 0.37 and 0.65

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return sequence.lookup(count)


class BlockDrafts:
    """Room for what a drafter on the device puts there before the target reads it."""

    likelihood = 0.7, 0.85  # less than on chat with the demo pair, where both are about 0.9

    def __init__(self, mask_id: int, block_size: int):
        self.block_rows = block_size  # of any other size it guesses badly: it was trained on this
        self.max_drafts = min(MAX_DRAFTS, block_size - 1)
        self._masks = np.full(self.max_drafts, mask_id, np.int32)

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return self._masks[:count]


@dataclass(slots=True)
class Rate:
    """Running share of drafts that were right."""

    hits: float = 0.0
    tries: float = 0.0

    def given(self, likelihood: float) -> float:
        """`likelihood`: what to think before much was verified."""
        return (self.hits + GUESS_WEIGHT * likelihood) / (self.tries + GUESS_WEIGHT)

    def add(self, hits: int, misses: int) -> None:
        self.hits = MEMORY * self.hits + hits
        self.tries = MEMORY * self.tries + hits + misses

    def fade(self) -> None:
        self.hits *= FADING
        self.tries *= FADING


@dataclass(slots=True)
class Acceptance:
    """How often the drafts of a sequence are right: text that fails the first may still be easy
    behind it.
    """

    first: Rate = field(default_factory=Rate)
    further: Rate = field(default_factory=Rate)  # if those before it were right

    def rates(self, likelihood: tuple[float, float]) -> tuple[float, float]:
        return self.first.given(likelihood[0]), self.further.given(likelihood[1])

    def verified(self, num_drafts: int, accepted: int) -> None:
        """`accepted` of num_drafts were right, the one behind them, if any, was not."""
        if accepted == 0:
            self.first.add(0, 1)
        else:
            self.first.add(1, 0)
            self.further.add(accepted - 1, int(accepted < num_drafts))

    def fade(self) -> None:
        """A pass without drafts."""
        self.first.fade()
        self.further.fade()


class Speculation:
    """Gives each generating sequence its drafts, pass by pass.

    max_context: positions of a sequence, which a drafter's blocks must not leave.
    width: drafts of each sequence in each pass; None: as many as pay.
    """

    def __init__(
        self, proposer: Proposer, pass_tokens: int, max_context: int, width: int | None = None
    ):
        if width is not None and not is_integer(width, 0, MAX_DRAFTS):
            raise MtlqError(misfit("draft_width", width, an_integer(0, MAX_DRAFTS)))
        self.proposer = proposer
        self.pass_tokens = pass_tokens
        self.max_context = max_context
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
            curve = self._curves[num_sequences] = CostCurve(num_sequences, self.pass_tokens)
        if num_injected <= (1 + MAX_DRAFTS) * num_sequences:
            cost = curve.measure(num_rows, ns)
        else:  # work of many passes
            cost = curve.ns(num_rows)
        if num_rows == num_sequences:
            gain = LOSS
        elif curve.has_plain:
            gain = 1 + self._num_accepted / num_sequences - cost / curve.ns(num_sequences)
        else:
            gain = 0.0
        self._credit = min(self._credit + gain, MOST_CREDIT)

    def _may_try(self, live: Items[Sequence]) -> bool:
        """Whether it is known what plain decoding takes, and drafting is not in debt to it."""
        curve = self._curves.get(len(live))
        return self._credit > 0 and curve is not None and not curve.wants_plain

    def _propose(self, live: Items[Sequence], room: int) -> None:
        limits = [self._limit(sequence) for sequence in live]
        if self.width is None:
            likelihood = self.proposer.likelihood
            rates = [sequence.request.acceptance.rates(likelihood) for sequence in live]
            counts = self._curves[len(live)].paying(rates, limits, room)
        else:
            counts = _shared_out(limits, room)
        for sequence, count in zip(live, counts, strict=True):
            if count:
                drafts = self.proposer.propose(sequence, count)
                if len(drafts):
                    sequence.draft(drafts, self.proposer.block_rows)

    def _limit(self, sequence: Sequence) -> int:
        """Most drafts: no pass runs beyond the last token that may be generated or a checkpoint, no
        block beyond the context.
        """
        if sequence.pending != 1 or sequence.kv_valid == 0:
            return 0
        if sequence.kv_valid + self.proposer.block_rows > self.max_context:
            return 0
        ahead = sequence.next_checkpoint - sequence.kv_valid - 1
        return max(0, min(self.max_drafts, sequence.request.num_left - 1, ahead))


def _shared_out(limits: list[int], room: int) -> list[int]:
    """Of each limit as much as `room` has for all."""
    num_left, counts = sum(limit > 0 for limit in limits), []
    for limit in limits:
        counts.append(min(limit, room // num_left) if limit else 0)
        num_left -= limit > 0
        room -= counts[-1]
    return counts
