"""A runner without a model: the next token is a hash of everything that the engine must get right.

The "GDN state" of a slot is a rolling hash over its tokens, kept in two banks; the "K/V" of a
position is eight bytes per tile derived from the state there, written through page tables that only
map operations change. Logits hash the state with every K/V byte of the sequence. A wrong bank,
slot, position, mapping, snapshot or bundle copy changes the tokens; touching what is not mapped
raises. Free memory is junk. The last tile is twice as large as the others. The "tape" of a bank
holds the tokens that a step with drafts ran. fake_drafter.py adds the context of a drafter.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from fake_drafter import FakeDrafter

from mtlqwen import abi
from mtlqwen.errors import OutOfMemory

M64 = (1 << 64) - 1
VALUE_BYTES = 8  # of one position in one tile


def mix(x: int) -> int:
    """splitmix64"""
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def next_state(state: int, last: int, token: int) -> int:
    return mix(state ^ mix(token * 31 + last))


def kv_value(state: int, tile: int) -> int:
    return mix(state + tile + 1)


def position_weight(position):
    return 2 * position + 1


def logits_of(state: int, digest: int, num_tokens: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.arange(num_tokens, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= np.uint64(mix(state ^ digest))
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((x >> np.uint64(40)) / np.float64(1 << 21)).astype(np.float32)


class Oracle:
    """The same function straight from the token history, with no memory to get wrong."""

    def __init__(self, num_tiles: int, num_tokens: int):
        self.num_tiles, self.num_tokens = num_tiles, num_tokens

    def logits(self, ids) -> np.ndarray:
        return logits_of(*self._absorb((0, 0, 0, 0), ids)[:2], self.num_tokens)

    def generate(self, ids, count: int, choose=np.argmax) -> list[int]:
        """`count` tokens that follow `ids`, each chosen from its logits."""
        cursor, out = self._absorb((0, 0, 0, 0), ids), []
        for _ in range(count):
            token = int(choose(logits_of(cursor[0], cursor[1], self.num_tokens)))
            out.append(token)
            cursor = self._absorb(cursor, [token])
        return out

    def _absorb(self, cursor, ids):
        state, digest, last, position = cursor
        for token in ids:
            state, last = next_state(state, last, int(token)), int(token)
            for tile in range(self.num_tiles):
                digest = (digest + kv_value(state, tile) * position_weight(position)) & M64
            position += 1
        return state, digest, last, position


@dataclass
class FakeBatch:
    header: np.ndarray
    input_ids: np.ndarray
    row_sequence: np.ndarray
    positions: np.ndarray
    query_start_loc: np.ndarray
    sequence_slots: np.ndarray
    batched_kv_valid: np.ndarray
    bank: np.ndarray
    state: np.ndarray
    pending: np.ndarray
    logit_rows: np.ndarray


class FakeRunner:
    def __init__(
        self,
        *,
        max_slots=4,
        max_context=256,
        pass_tokens=32,
        block_tokens=16,
        num_tiles=3,
        pages_per_tile=2,
        num_tokens=50,
        arena_bundles=512,
        max_mappings=0,
        model_id=b"fake",
        drafter=False,
    ):
        self.max_slots, self.max_context = max_slots, max_context
        self.pass_tokens, self.block_tokens = pass_tokens, block_tokens
        self.num_target_tiles, self.num_tiles = num_tiles, num_tiles + drafter
        self.page_bytes = block_tokens * VALUE_BYTES // pages_per_tile
        self.tile_pages = [pages_per_tile] * (num_tiles - 1) + [2 * pages_per_tile]
        self.tile_pages += [pages_per_tile] * drafter
        self.bundle_pages = sum(self.tile_pages)
        self.bundle_bytes = self.bundle_pages * self.page_bytes
        self.state_bytes = 16
        self.model_id = model_id
        self.config = SimpleNamespace(num_tokens=num_tokens, num_vocab_rows=num_tokens + 6)
        self.device = SimpleNamespace(
            info=SimpleNamespace(max_mappings=max_mappings, memory_bytes=1 << 20), map=self._map
        )
        self.cache_buffers = [100 + 7 * tile for tile in range(self.num_tiles)]
        self.device_ns = 0
        self.ns_of_rows = None  # what a pass takes, if not the time that passes here
        self.fail_next: Exception | None = None
        self.num_runs = self.num_rows = self.num_map_ops = 0
        rng = np.random.default_rng(7)
        self._arena = rng.integers(0, 256, arena_bundles * self.bundle_bytes, np.uint8)
        self.arena = self._arena.view(np.uint64)
        self._used = np.zeros(arena_bundles, bool)
        self._heaps: dict[int, tuple[int, int]] = {}  # id -> first bundle of the arena, bundles
        self._next_heap = 1
        num_blocks = max_slots * max_context // block_tokens
        # Page of the arena, for each page of a tile's buffer.
        self._tables = [np.full(num_blocks * n, -1, np.int64) for n in self.tile_pages]
        self._heap_of = [table.copy() for table in self._tables]
        self.banks = rng.integers(0, 1 << 63, (2, max_slots, 2), np.uint64)  # state, last token
        self.tapes: dict[tuple[int, int], list[int]] = {}  # of (bank, slot)
        self._create_arrays()
        self.drafting = FakeDrafter(self, num_tiles) if drafter else None

    def _create_arrays(self):
        def array(length, dtype=np.int32):
            return np.full(length, 12345, dtype)

        rows, slots = self.pass_tokens, self.max_slots
        self.batch = FakeBatch(
            array(16, np.uint32), array(rows), array(rows), array(rows), array(slots + 1),
            array(slots), array(slots), array(slots), array(slots), array(slots), array(rows),
        )  # fmt: skip
        self.logits = np.full((rows, self.config.num_vocab_rows), np.nan, np.float32)
        self.argmax = np.full(rows, -1, np.int32)

    def oracle(self) -> Oracle:
        return Oracle(self.num_target_tiles, self.config.num_tokens)

    # ---- the interface of a runner ---------------------------------------------------------

    def new_heap(self, num_bundles):
        for first in range(len(self._used) - num_bundles + 1):
            if not self._used[first : first + num_bundles].any():
                break
        else:
            raise OutOfMemory(f"no {num_bundles} bundles in a row", status=abi.E_NOMEM)
        self._used[first : first + num_bundles] = True
        heap, self._next_heap = self._next_heap, self._next_heap + 1
        self._heaps[heap] = first, num_bundles
        return heap

    def free_heap(self, heap):
        assert not any((h == heap).any() for h in self._heap_of), f"heap {heap} is still mapped"
        first, num_bundles = self._heaps.pop(heap)
        self._used[first : first + num_bundles] = False
        self._arena[first * self.bundle_bytes : (first + num_bundles) * self.bundle_bytes] ^= 0xA5

    @property
    def num_heaps(self):
        return len(self._heaps)

    @property
    def num_mapped_pages(self):
        return sum(int((table >= 0).sum()) for table in self._tables)

    def bundles_of_slot(self, slot):
        """(heap, bundle) of each mapped block, in order."""
        step = self.tile_pages[0]
        per_slot = self.max_context // self.block_tokens * step
        pages = slice(slot * per_slot, (slot + 1) * per_slot, step)
        found = []
        for heap, page in zip(self._heap_of[0][pages], self._tables[0][pages], strict=True):
            if heap >= 0:
                first = self._heaps[heap][0] * self.bundle_pages
                found.append((int(heap), (int(page) - first) // step))
        return found

    def bundle_view(self, heap, bundle):
        first, num_bundles = self._heaps[heap]
        assert 0 <= bundle < num_bundles
        start, tiles = first * self.bundle_bytes, []
        for size in (pages * self.page_bytes for pages in self.tile_pages):
            tiles.append(self._arena[start + bundle * size :][:size])
            start += num_bundles * size
        return tiles

    def save_state(self, slot, bank, out):
        out[:] = self.banks[bank, slot].view(np.uint8)

    def load_state(self, slot, bank, source):
        self.banks[bank, slot] = source.view(np.uint64)

    def run(self, map_ops=None):
        start = time.perf_counter_ns()
        if self.fail_next is not None:
            raise self.fail_next
        if map_ops is not None:
            self._map(map_ops)
        num_rows, num_sequences, num_logit_rows = (int(x) for x in self.batch.header[:3])
        assert 0 <= num_rows <= self.pass_tokens
        assert (self.drafting is None) <= num_sequences <= self.max_slots
        if self.drafting is not None:
            self.drafting.run()
        slots = self.batch.sequence_slots[:num_sequences]
        assert len(set(slots.tolist())) == num_sequences, "two sequences in one slot"
        wanted = {int(r): i for i, r in enumerate(self.batch.logit_rows[:num_logit_rows])}
        for index in range(num_sequences):
            self._run_sequence(index, wanted)
        assert not wanted, f"rows {wanted} belong to no sequence"
        assert self.batch.query_start_loc[num_sequences] == num_rows
        self.num_runs += 1
        self.num_rows += num_rows
        self.device_ns = time.perf_counter_ns() - start
        if self.ns_of_rows is not None:
            self.device_ns = self.ns_of_rows(num_rows)

    # ---- the "model" -----------------------------------------------------------------------

    def _run_sequence(self, index, wanted):
        b = self.batch
        rows = range(int(b.query_start_loc[index]), int(b.query_start_loc[index + 1]))
        slot, kv_valid, bank = (
            int(b.sequence_slots[index]),
            int(b.batched_kv_valid[index]),
            int(b.bank[index]),
        )
        is_bound, num_rows = bool(b.state[index] >= 0), int(b.header[0])
        assert len(rows) > is_bound or num_rows == 0
        assert b.state[index] == (slot if is_bound else -1)
        state, last = (int(x) for x in self.banks[bank, slot]) if kv_valid else (0, 0)
        assert b.pending[index] <= len(self.tapes.get((bank, slot), []))
        for token in self.tapes.get((bank, slot), [])[: b.pending[index]]:
            state, last = next_state(state, last, token), token
        replayed = state, last
        for row in rows:
            position, token = kv_valid + row - rows.start, int(b.input_ids[row])
            assert b.positions[row] == position and b.row_sequence[row] == index
            state, last = next_state(state, last, token), token
            for tile in range(self.num_target_tiles):
                word = self.words(tile, slot, np.array([position]))
                self.arena[word] = kv_value(state, tile)
            if self.drafting is not None:
                self.drafting.features[int(b.header[3]) + row] = kv_value(state, 0)
            if row in wanted:
                self._predict(wanted.pop(row), slot, position + 1, state)
        self.tapes[bank ^ 1, slot] = b.input_ids[list(rows)].tolist() if is_bound else []
        self.banks[bank ^ 1, slot] = replayed if is_bound else (state, last)

    def words(self, tile, slot, positions):
        """Where in the arena the values of positions are, in units of 8 bytes."""
        stride = self.tile_pages[tile] // self.tile_pages[0]
        word = (slot * self.max_context + positions) * stride
        page, offset = np.divmod(word, self.page_bytes // VALUE_BYTES)
        pages = self._tables[tile][page]
        assert (pages >= 0).all(), f"fault: slot {slot} of {positions[-1]} is not mapped"
        return pages * (self.page_bytes // VALUE_BYTES) + offset

    def _predict(self, out, slot, length, state):
        positions = np.arange(length)
        with np.errstate(over="ignore"):
            weights = position_weight(positions.astype(np.uint64))
            values = [
                self.arena[self.words(tile, slot, positions)]
                for tile in range(self.num_target_tiles)
            ]
            digest = int((np.array(values) * weights).sum(dtype=np.uint64))
        valid = self.config.num_tokens
        self.logits[out, :valid] = logits_of(state, digest, valid)
        self.argmax[out] = np.argmax(self.logits[out, :valid])

    # ---- mapping ---------------------------------------------------------------------------

    def _map(self, ops):
        for op in ops:
            kind, buffer, heap, reserved, page, heap_page, num_pages = (int(x) for x in op.item())
            tile = self.cache_buffers.index(buffer)
            self.num_map_ops += 1
            table, heap_of = self._tables[tile], self._heap_of[tile]
            assert reserved == 0 and num_pages > 0 and page + num_pages <= len(table)
            target = slice(page, page + num_pages)
            if kind == abi.UNMAP:
                assert heap == abi.NO_ID and (table[target] >= 0).all()
                table[target] = heap_of[target] = -1
                continue
            first, num_bundles = self._heaps[heap]
            assert kind == abi.MAP and (table[target] < 0).all(), "mapped twice"
            assert heap_page + num_pages <= num_bundles * self.bundle_pages
            start = first * self.bundle_pages + heap_page
            table[target] = np.arange(start, start + num_pages)
            heap_of[target] = heap
