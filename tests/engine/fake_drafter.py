"""A drafter without a model, beside a FakeRunner: it wants to see every position before it drafts.

The context of a position is eight bytes in a tile of its own, made of the feature that the pass of
that position left. Drafting looks at all of it, so that a feature that was lost, came twice, late
or to another slot, a bundle or an entry without context raise. The drafts stay what the proposer
said.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


def context_value(feature: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return feature * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0x94D049BB133111EB)


class FakeDrafter:
    """runner: `words(tile, slot, positions)` says where values lie in `arena`, 8 bytes each."""

    num_common_tokens, recent_tokens = 50, 10

    def __init__(self, runner, tile):
        def array(length, dtype=np.int32):
            return np.full(length, 12345, dtype)

        self.runner, self.tile = runner, tile
        rows, slots = 16 * runner.max_slots, runner.max_slots
        self.drafts = SimpleNamespace(
            header=array(16, np.uint32), input_ids=array(rows), row_sequence=array(rows),
            positions=array(rows), query_start_loc=array(slots + 1), sequence_slots=array(slots),
            batched_kv_valid=array(slots), logit_rows=array(rows), target_rows=array(rows),
        )  # fmt: skip
        rows = runner.pass_tokens
        self.features = array(rows, np.uint64)
        self.context = SimpleNamespace(
            header=array(16, np.uint32), feature_rows=array(rows), row_sequence=array(rows),
            positions=array(rows),
        )  # fmt: skip
        self.num_injections = 0  # passes with one

    def run(self):
        count = int(self.context.header[0])
        self.num_injections += count > 0
        places = set()
        for row in range(count):
            slot, position = int(self.context.row_sequence[row]), int(self.context.positions[row])
            feature = self.features[self.context.feature_rows[row]]
            self._write(slot, position, context_value(feature))
            places.add((slot, position))
        assert len(places) == count, "a position twice in one injection"
        for index in range(int(self.drafts.header[1])):
            self._draft(index)

    def _draft(self, index):
        d = self.drafts
        slot, kv_valid = int(d.sequence_slots[index]), int(d.batched_kv_valid[index])
        positions = np.arange(kv_valid)
        arena, words = self.runner.arena, self.runner.words
        seen = arena[words(self.tile, slot, positions)]
        expected = context_value(arena[words(0, slot, positions)])
        missing = np.flatnonzero(seen != expected)
        assert missing.size == 0, f"slot {slot} drafts at {kv_valid} without context of {missing}"
        for row in range(int(d.query_start_loc[index]), int(d.query_start_loc[index + 1])):
            self._write(slot, int(d.positions[row]), np.uint64(row))  # what a block leaves

    def _write(self, slot, position, value):
        self.runner.arena[self.runner.words(self.tile, slot, np.array([position]))] = value
