"""Which waiting request comes next."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from ._prefix import Entry
from ._sequence import Sequence
from .kv_memory import KVMemory

MIN_GAIN = 16  # tokens that a prefix entry nobody asked for must save
LOOK_AHEAD = 32  # waiting requests that are considered in one step


@dataclass(slots=True)
class Admitted:
    """A request that leaves the queue."""

    sequence: Sequence
    entry: Entry | None  # to restart from
    shared: int  # leading tokens that it has in common with an entry or a live sequence


class Admission:
    """The waiting queue, in order of arrival.

    A request is held while a live one computes the tokens that both begin with; others may pass it
    then. Nobody passes a request that waits for memory.
    """

    def __init__(self, memory: KVMemory):
        self.memory = memory
        self.waiting: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda waiting: waiting.number)

    def remove(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)

    def take(self, live: list[Sequence]) -> Admitted | None:
        """The next request to start beside the live ones, no longer waiting; None if none can."""
        for sequence in self.waiting[:LOOK_AHEAD]:
            if self._is_held(sequence):
                continue
            entry, shared = self.memory.prefix.lookup(sequence.tokens())
            if self._hold(sequence, entry, live):
                continue
            if live and not self.memory.has_room(sequence, entry, len(live)):
                return None
            self.waiting.remove(sequence)
            shared = max([shared, *(other.shared_tokens(sequence) for other in live)])
            return Admitted(sequence, entry, shared)
        return None

    def checkpoints(self, admitted: Admitted) -> set[int]:
        """Where a sequence that has just been given its slot publishes."""
        sequence, prefix = admitted.sequence, self.memory.prefix
        if not prefix.is_enabled:
            return set()
        wanted: set[int] = sequence.request.checkpoints
        # Where this prompt leaves a known one, a third will probably do so too.
        divergence = min(admitted.shared, sequence.num_tokens - 1)
        if divergence - sequence.kv_valid >= MIN_GAIN:
            wanted.add(divergence)
        return _worthwhile(wanted, sequence.kv_valid) | prefix.grid(sequence.num_tokens)

    def _is_held(self, sequence: Sequence) -> bool:
        if sequence.request.waits_for is None:
            return False
        other, position = sequence.request.waits_for
        if other.active and other.kv_valid < position:
            return True
        sequence.request.waits_for = None
        return False

    def _hold(self, sequence: Sequence, entry: Entry | None, live: list[Sequence]) -> bool:
        """Holds a request if a live one will compute what it needs, and has that published."""
        if not self.memory.prefix.is_enabled:
            return False
        most = sequence.num_tokens - 1  # one token is left to compute
        position, other = max(
            ((min(other.shared_tokens(sequence), most), other) for other in live),
            key=lambda pair: pair[0] if pair[0] > pair[1].kv_valid else 0,
            default=(0, None),
        )
        gain = position - (entry.num_tokens if entry is not None else 0)
        if other is None or other.kv_valid >= position or gain < MIN_GAIN:
            return False
        other.add_checkpoint(position)
        other.request.checkpoints.add(position)
        sequence.request.waits_for = other, position
        return True


def _worthwhile(checkpoints: set[int], restored: int) -> set[int]:
    """Each checkpoint cuts a pass: not those that save next to nothing beyond the one before. The
    last stays."""
    kept, previous = set(), restored
    for position in sorted(checkpoints):
        if position - previous >= MIN_GAIN or position == max(checkpoints):
            kept.add(position)
            previous = position
    return kept
