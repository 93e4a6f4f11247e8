"""Drives a Runner with one sequence and no engine: bundles mapped ahead, banks flipped by hand."""

import numpy as np

from mtlqwen import abi
from mtlqwen.runner import Runner


class LoneSequence:
    """A sequence in one slot; `feed` returns the logits of its tokens [n, num_vocab_rows]."""

    def __init__(self, runner: Runner, slot: int = 0):
        self.runner = runner
        self.slot = slot
        self.kv_valid = 0
        self.bank = 0
        num_bundles = runner.max_context // runner.block_tokens
        self.heap = runner.new_heap(num_bundles)
        self._map(abi.MAP, num_bundles)
        self.num_bundles = num_bundles

    def close(self) -> None:
        self._map(abi.UNMAP, self.num_bundles)
        self.runner.free_heap(self.heap)

    def _map(self, kind: int, num_bundles: int) -> None:
        runner = self.runner
        ops = np.zeros(runner.num_tiles, abi.MAP_OP)
        first_block = self.slot * runner.max_context // runner.block_tokens
        heap_page = 0
        for op, buffer, pages in zip(ops, runner.cache_buffers, runner.tile_pages, strict=True):
            op["kind"] = kind
            op["buffer"] = buffer
            op["heap"] = self.heap if kind == abi.MAP else abi.NO_ID
            op["page"] = first_block * pages
            op["heap_page"] = heap_page if kind == abi.MAP else 0
            op["num_pages"] = num_bundles * pages
            heap_page += num_bundles * pages
        runner.device.map(ops)

    def feed(self, ids, pieces=None) -> np.ndarray:
        """Runs `ids` in passes of the given sizes (default: as few as possible)."""
        rows = []
        for piece in _cut(list(ids), pieces, self.runner.pass_tokens):
            run_batch(self.runner, [(self, piece)])
            rows.append(self.runner.logits[: len(piece)].copy())
        return np.concatenate(rows)

    def state(self) -> np.ndarray:
        out = np.empty(self.runner.state_bytes, np.uint8)
        self.runner.save_state(self.slot, self.bank, out)
        return out


def run_batch(runner: Runner, work) -> None:
    """One step over [(sequence, ids)], logits for every row."""
    batch, row = runner.batch, 0
    for index, (sequence, ids) in enumerate(work):
        rows = slice(row, row + len(ids))
        batch.query_start_loc[index] = row
        batch.input_ids[rows] = ids
        batch.row_sequence[rows] = index
        batch.positions[rows] = sequence.kv_valid + np.arange(len(ids))
        batch.sequence_slots[index] = sequence.slot
        batch.batched_kv_valid[index] = sequence.kv_valid
        batch.bank[index] = sequence.bank
        row += len(ids)
    batch.query_start_loc[len(work)] = row
    batch.logit_rows[:row] = np.arange(row)
    batch.header[:3] = row, len(work), row
    runner.run()
    for sequence, ids in work:
        sequence.kv_valid += len(ids)
        sequence.bank ^= 1


def _cut(ids, pieces, most):
    if pieces is None:
        pieces = [most] * (len(ids) // most) + [len(ids) % most] * (len(ids) % most > 0)
    for size in pieces:
        yield ids[:size]
        ids = ids[size:]
