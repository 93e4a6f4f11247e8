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

from ._sequence import Sequence

MAX_DRAFTS = 15  # of a sequence in one pass
MEMORY = 0.85  # weight of the passes before the last, in the acceptance of a sequence
FIRST_GUESS, GUESS_WEIGHT = 0.7, 1.0  # acceptance before anything was verified, in drafts
LEAST_GAIN = 1.02  # of expected tokens per time over plain decoding
PROBE_DRAFTS = 2
FIRST_PAUSE, LAST_PAUSE = 32, 256  # passes that a sequence stands aside between probes
COST_MEMORY = 0.8  # weight of the measurements before the last
FIRST_SLOPE = 0.04  # cost of a further row, of a pass with one row per sequence, before measured


class Proposer(Protocol):
    """Where drafts come from."""

    max_drafts: int

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        """At most `count` tokens that may follow."""


class PromptLookup:
    """Drafts what followed the last few tokens where they appeared before: quoting, code edits."""

    max_drafts = MAX_DRAFTS

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return sequence.lookup(count)


class BlockDrafts:
    """Room for what a drafter on the device puts there before the target reads it."""

    def __init__(self, mask_id: int, block_size: int):
        self.max_drafts = min(MAX_DRAFTS, block_size - 1)
        self._masks = np.full(self.max_drafts, mask_id, np.int32)

    def propose(self, sequence: Sequence, count: int) -> npt.NDArray[np.int32]:
        return self._masks[:count]


@dataclass(slots=True)
class Acceptance:
    """Running estimate that the next draft of a sequence is right, given those before it were."""

    hits: float = FIRST_GUESS * GUESS_WEIGHT
    tries: float = GUESS_WEIGHT
    pause: int = FIRST_PAUSE
    wait: int = 0  # passes until the next probe
    probe_due: bool = False

    @property
    def rate(self) -> float:
        return self.hits / self.tries

    def verified(self, num_drafts: int, accepted: int) -> None:
        """`accepted` of num_drafts were right, the one behind them, if any, was not."""
        self.hits = MEMORY * self.hits + accepted
        self.tries = MEMORY * self.tries + accepted + (accepted < num_drafts)
        if accepted == num_drafts:
            self.pause = FIRST_PAUSE

    def stand_aside(self) -> None:
        self.wait = self.pause
        self.probe_due = True
        self.pause = min(2 * self.pause, LAST_PAUSE)


@dataclass
class CostCurve:
    """Time of a pass over the number of its rows, for one number of generating sequences."""

    num_sequences: int
    measured_ns: dict[int, float] = field(default_factory=dict)
    _curve: list[float] = field(default_factory=list)

    def measure(self, num_rows: int, ns: int) -> None:
        last = self.measured_ns.get(num_rows)
        if last is not None:  # a pass that something else held up tells little
            ns_seen = min(float(ns), 2 * last)
            self.measured_ns[num_rows] = COST_MEMORY * last + (1 - COST_MEMORY) * ns_seen
        else:
            self.measured_ns[num_rows] = float(ns)
        self._curve.clear()

    def ns(self, num_rows: int) -> float:
        """Between measured numbers of rows interpolated, beyond them as the last slope goes on."""
        if not self._curve:
            self._draw()
        return self._curve[min(num_rows - self.num_sequences, len(self._curve) - 1)]

    def _draw(self) -> None:
        first, most = self.num_sequences, self.num_sequences * (1 + MAX_DRAFTS)
        known = dict(sorted(self.measured_ns.items()))
        rows, times = list(known), list(known.values())
        slope = times[0] * FIRST_SLOPE / first
        if len(rows) > 1:
            slope = max(slope / 4, (times[-1] - times[0]) / (rows[-1] - rows[0]))
        if rows[-1] < most:
            times.append(times[-1] + slope * (most - rows[-1]))
            rows.append(most)
        self._curve = np.interp(np.arange(first, most + 1), rows, times).tolist()


class Speculation:
    """Gives each generating sequence its drafts, pass by pass.

    width: drafts of each sequence in each pass; None: as many as pay.
    """

    def __init__(self, proposer: Proposer, pass_tokens: int, width: int | None = None):
        self.proposer = proposer
        self.pass_tokens = pass_tokens
        self.width = width
        self.max_drafts = min(
            MAX_DRAFTS, proposer.max_drafts, MAX_DRAFTS if width is None else width
        )
        self._curves: dict[int, CostCurve] = {}

    def draft(self, live: Items[Sequence]) -> None:
        """Puts drafts behind the last token of the sequences that generate.

        Prompts come first: drafts take the rows of a pass that all pending tokens leave.
        """
        room = self.pass_tokens - sum(sequence.pending for sequence in live)
        if room <= 0 or self.max_drafts == 0:
            return
        ready = [sequence for sequence in live if self._limit(sequence) > 0]
        if self.width is None:
            ready = [sequence for sequence in ready if _is_awake(sequence)]
        proposed = [
            (sequence, self.proposer.propose(sequence, self._limit(sequence))) for sequence in ready
        ]
        proposed = [(sequence, drafts) for sequence, drafts in proposed if len(drafts)]
        if not proposed:
            return
        limits = [len(drafts) for _, drafts in proposed]
        if self.width is None:
            counts = self._paying(live, [sequence for sequence, _ in proposed], limits, room)
        else:
            counts = _shared_out(limits, room)
        for (sequence, drafts), count in zip(proposed, counts, strict=True):
            if count:
                sequence.draft(drafts[:count])

    def verified(self, sequence: Sequence, num_drafts: int, accepted: int) -> None:
        if self.width is None and num_drafts:
            sequence.request.acceptance.verified(num_drafts, accepted)

    def measured(self, num_sequences: int, num_rows: int, ns: int) -> None:
        """A pass of generating sequences only took so long."""
        if self.width is None:
            self._curve(num_sequences).measure(num_rows, ns)

    def _curve(self, num_sequences: int) -> CostCurve:
        return self._curves.setdefault(num_sequences, CostCurve(num_sequences))

    def _limit(self, sequence: Sequence) -> int:
        """Most drafts: no pass runs beyond the last token that may be generated, or a
        checkpoint.
        """
        if sequence.pending != 1 or sequence.kv_valid == 0:
            return 0
        ahead = sequence.next_checkpoint - sequence.kv_valid - 1
        return min(self.max_drafts, sequence.request.num_left - 1, ahead)

    def _paying(
        self, live: Items[Sequence], ready: Items[Sequence], limits: list[int], room: int
    ) -> list[int]:
        """How many drafts of each sequence give the most expected tokens per time.

        The next draft is taken where it is most likely to count, as long as that helps.
        """
        num_sequences = len(live)
        curve = self._curve(num_sequences)
        if num_sequences not in curve.measured_ns:
            return [0] * len(ready)  # plain decoding is measured first
        rates = [sequence.request.acceptance.rate for sequence in ready]
        counts, likely = [0] * len(ready), rates.copy()
        best, best_counts = LEAST_GAIN * num_sequences / curve.ns(num_sequences), counts.copy()
        expected, num_rows = float(num_sequences), num_sequences
        for _ in range(room):
            chosen = max(range(len(ready)), key=lambda i: likely[i])
            if likely[chosen] <= 0.0:
                break
            expected += likely[chosen]
            num_rows += 1
            counts[chosen] += 1
            likely[chosen] *= rates[chosen] if counts[chosen] < limits[chosen] else 0.0
            if expected > best * curve.ns(num_rows):
                best, best_counts = expected / curve.ns(num_rows), counts.copy()
        for i, sequence in enumerate(ready):
            acceptance: Acceptance = sequence.request.acceptance
            if best_counts[i] == 0 and acceptance.probe_due:
                best_counts[i] = min(PROBE_DRAFTS, limits[i])
            elif best_counts[i] == 0:
                acceptance.stand_aside()
                continue
            acceptance.probe_due = False
        return _shared_out(best_counts, room)


def _is_awake(sequence: Sequence) -> bool:
    acceptance: Acceptance = sequence.request.acceptance
    acceptance.wait -= acceptance.wait > 0
    return acceptance.wait == 0


def _shared_out(limits: list[int], room: int) -> list[int]:
    """Of each limit as much as `room` has for all."""
    counts: list[int] = []
    for position, limit in enumerate(limits):
        counts.append(min(limit, room // (len(limits) - position)))
        room -= counts[-1]
    return counts
