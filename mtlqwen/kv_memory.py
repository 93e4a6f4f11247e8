"""What of each sequence is in device memory: K/V bundles, their mappings, GDN snapshots."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ._bindings import BundlePool, SlotMap
from ._prefix import Entry, PrefixCache
from ._sequence import Sequence
from .arguments import an_integer, is_integer, misfit
from .errors import LimitError, MtlqError, OutOfMemory
from .prefix_store import PrefixStore

if TYPE_CHECKING:
    from .runner import Runner

CHUNK_BYTES = 256 << 20  # of a heap chunk: enough for long runs, little enough to give back
OTHER_MAPPINGS = 1024  # of the device: ordinary buffers and heap chunks
UNLIMITED = 2**31 - 1


class KVMemory:
    """Binds bundles to sequences and remembers prefixes, within the budgets.

    kv_memory_bytes: budget for bundles; default: a quarter of the device's memory, at most what all
        slots can use and at least one bundle.
    prefix_memory_bytes: budget for GDN snapshots; default: an eighth of the device's memory; 0: no
        cache.
    prefix_cache_dir: keeps prefix entries across restarts.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        kv_memory_bytes: int | None = None,
        prefix_memory_bytes: int | None = None,
        prefix_cache_dir: str | Path | None = None,
        prefix_chunk_tokens: int = 512,
    ):
        self.runner = runner
        self.block_tokens = runner.block_tokens
        memory_bytes = runner.device.info.memory_bytes
        if prefix_memory_bytes is None:
            prefix_memory_bytes = memory_bytes // 8
        else:
            self._check_prefix_memory(prefix_memory_bytes, prefix_cache_dir)
        if not is_integer(prefix_chunk_tokens, 1, sys.maxsize):
            wanted = an_integer(1, sys.maxsize)
            raise MtlqError(misfit("prefix_chunk_tokens", prefix_chunk_tokens, wanted))
        max_bundles = self._max_bundles(kv_memory_bytes, memory_bytes)
        # A request may use what the pool can hold, also where a slot has room for more.
        self.max_context = min(runner.max_context, max_bundles * runner.block_tokens)
        chunk = max(CHUNK_BYTES // runner.bundle_bytes, 1)
        self.pool = BundlePool(
            max_bundles, min(chunk, max_bundles), runner.new_heap, runner.free_heap
        )
        self.map = SlotMap(
            self.pool,
            runner.cache_buffers,
            runner.max_slots,
            runner.max_context // runner.block_tokens,
            runner.tile_pages,
            self._max_runs(),
        )
        self.prefix = PrefixCache(
            self.pool,
            runner.model_id,
            state_bytes=runner.state_bytes,
            max_bytes=prefix_memory_bytes,
            chunk_tokens=prefix_chunk_tokens,
        )
        self.store = self._open_store(prefix_cache_dir)

    # ---- questions -----------------------------------------------------------------------------

    def has_room(self, sequence: Sequence, entry: Entry | None, num_live: int) -> bool:
        """Whether a sequence, restored from `entry`, fits beside the live ones without preempting.

        Counts a spare block for each live sequence, so that the new one is not preempted at once.
        """
        wanted = self._num_blocks(sequence.num_tokens + 1)
        if not self.map.has_room(wanted):
            return False
        if entry is not None and not entry.is_cold:
            whole = entry.bundles[: entry.num_tokens // self.block_tokens]
            wanted -= sum(map(self.pool.is_bound, whole))
        return wanted + num_live <= self.pool.num_available

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    # ---- actions -------------------------------------------------------------------------------

    def start(self, sequence: Sequence, slot: int, entry: Entry | None) -> None:
        """Gives a sequence a slot, restored from `entry` or, if its file is bad, from the next one;
        else empty.
        """
        sequence.start(slot)
        while entry is not None and entry.is_cold and not self._load(entry):
            refused = entry
            entry, _ = self.prefix.lookup(sequence.tokens())
            if entry is refused:  # its file is good, but there is no memory for it
                return
        if entry is not None:
            self._restore(sequence, entry)

    def reserve(self, sequence: Sequence) -> bool:
        """Binds the blocks that the scheduled rows need; False if sequences hold all memory."""
        for _ in range(sequence.blocks_missing(self.block_tokens)):
            after = sequence.last_bundle
            bundle = self._take(after) if self.map.has_room(1) else None
            if bundle is None:
                return False
            self._bind(sequence, bundle)
        return True

    def stop(self, sequence: Sequence) -> None:
        """Takes everything of a sequence out of its slot; its tokens stay."""
        self.map.unmap(sequence.slot)
        for bundle in sequence.bindings:
            self.pool.unbind(bundle)
        sequence.stop()

    def publish(self, sequence: Sequence, *, durable: bool) -> None:
        """Makes what is computed of a sequence a prefix entry; the store keeps `durable` ones."""
        tokens = sequence.tokens(sequence.kv_valid)
        entry = self.prefix.find(tokens)
        if entry is None or entry.is_cold:
            state = self.prefix.make_room()
            if state is None:
                return
            self.runner.save_state(sequence.slot, sequence.bank, state)
            bundles = sequence.bindings[: self._num_blocks(sequence.kv_valid)]
            entry = self.prefix.publish(tokens, bundles, state)
        if entry is not None:
            self.prefix.touch(entry)
            entry.durable |= durable

    def settle(self) -> None:
        """After a submission that took all map operations: frees empty chunks."""
        self.pool.trim()

    def flush(self) -> None:
        """Applies map operations when no submission will take them."""
        ops = self.map.take_ops()
        if ops is not None:
            self.runner.device.map(ops)
        self.pool.trim()

    def save_one(self) -> bool:
        """Writes one durable entry to the store; False if there is none to write."""
        if self.store is None:
            return False
        for entry in self.prefix.entries:
            if not entry.durable or entry.path is not None or entry.state is None:
                continue
            if len(entry.bundles) * self.runner.bundle_bytes > self.store.max_bytes // 8:
                entry.durable = False  # would keep the engine from its next request for too long
                continue
            parts = [entry.state, *self._tiles(entry.bundles)]
            entry.path = self.store.save(entry.key, entry.tokens, parts)
            entry.durable = entry.path is not None
            return True
        return False

    def close(self) -> None:
        """Saves what the store still misses and gives all memory back; no sequence may be live."""
        while self.save_one():
            pass
        self.prefix.clear()
        self.flush()

    # ---- bundles -------------------------------------------------------------------------------

    def _bind(self, sequence: Sequence, bundle: int) -> None:
        sequence.bind(bundle)
        self.map.map(sequence.slot, bundle)

    def _take(self, after: int) -> int | None:
        """A bundle, behind `after` if possible, evicting prefix entries if necessary."""
        while True:
            try:
                bundle = self.pool.take(after)
            except OutOfMemory:  # the device has less than the budget
                bundle = None
            if bundle is not None or not self.prefix.free_bundle():
                return bundle

    def _tiles(self, bundles: list[int]) -> list[npt.NDArray[np.uint8]]:
        return [
            tile for bundle in bundles for tile in self.runner.bundle_view(*self.pool.place(bundle))
        ]

    # ---- prefix entries ------------------------------------------------------------------------

    def _restore(self, sequence: Sequence, entry: Entry) -> None:
        """Binds the entry's bundles and loads its state. A partial last bundle is copied: the
        sequence goes on writing there.
        """
        self.prefix.touch(entry)
        whole, rest = divmod(entry.num_tokens, self.block_tokens)
        state, bundles = entry.state, entry.bundles[:whole]
        assert state is not None
        for bundle in entry.bundles:  # nothing of it may be evicted for the copy
            self.pool.bind(bundle)
        if rest:
            source = entry.bundles[whole]
            copy = self._take(bundles[-1] if bundles else -1)
            if copy is not None:
                pairs = zip(self._tiles([copy]), self._tiles([source]), strict=True)
                for target, tile in pairs:
                    target[:] = tile
            self.pool.unbind(source)
            if copy is None:
                for bundle in bundles:
                    self.pool.unbind(bundle)
                return
            bundles.append(copy)
        for bundle in bundles:
            self._bind(sequence, bundle)
        self.runner.load_state(sequence.slot, sequence.bank, state)
        sequence.restore(entry.num_tokens)

    def _load(self, entry: Entry) -> bool:
        """Reads a cold entry from the store; what cannot be read is forgotten."""
        assert self.store is not None and entry.path is not None
        state = self.prefix.make_room()
        bundles: list[int] = []
        for _ in range(self._num_blocks(entry.num_tokens)):
            bundle = self._take(bundles[-1] if bundles else -1)
            if bundle is None:
                break
            bundles.append(bundle)
        loaded = False
        if state is not None and len(bundles) == self._num_blocks(entry.num_tokens):
            tokens = entry.tokens
            loaded = self.store.load(entry.path, [state, *self._tiles(bundles)])
            if loaded:
                self.prefix.publish(tokens, bundles, state)
            else:
                self.prefix.remove(entry)
        for bundle in bundles:
            self.pool.unbind(bundle)
        return loaded

    # ---- construction --------------------------------------------------------------------------

    def _max_bundles(self, kv_memory_bytes: int | None, memory_bytes: int) -> int:
        bundle_bytes = self.runner.bundle_bytes
        useful = self.runner.max_slots * self.runner.max_context // self.block_tokens
        if kv_memory_bytes is None:
            return min(max(memory_bytes // 4 // bundle_bytes, 1), useful)
        if not is_integer(kv_memory_bytes, 0):
            raise MtlqError(misfit("kv_memory", kv_memory_bytes, an_integer(0)))
        if kv_memory_bytes < bundle_bytes:
            raise MtlqError(
                f"kv_memory of {kv_memory_bytes} bytes holds no bundle: the K/V of "
                f"{self.block_tokens} tokens takes {bundle_bytes} bytes"
            )
        return min(kv_memory_bytes // bundle_bytes, useful)

    def _check_prefix_memory(self, num_bytes: int, directory: str | Path | None) -> None:
        if not is_integer(num_bytes, 0, sys.maxsize):
            raise MtlqError(misfit("prefix_memory", num_bytes, an_integer(0, sys.maxsize)))
        if 0 < num_bytes < self.runner.state_bytes:
            raise MtlqError(
                f"prefix_memory of {num_bytes} bytes holds no snapshot: one takes "
                f"{self.runner.state_bytes} bytes; 0 turns the prefix cache off"
            )
        if num_bytes == 0 and directory is not None:
            raise MtlqError(f"prefix_cache_dir {directory} has no effect with prefix_memory 0")

    def _max_runs(self) -> int:
        """Mappings per cache and layer within the system's limit.

        Consecutive bundles share one mapping, and the pool hands bundles out so that they mostly
        are consecutive; a sequence that gets over the limit all the same is preempted like one that
        gets no memory. So it is enough that one sequence fits however its bundles lie.
        """
        limit = self.runner.device.info.max_mappings
        if limit == 0:
            return UNLIMITED
        num_tiles = self.runner.num_tiles
        reserved = OTHER_MAPPINGS + num_tiles * (self.runner.max_slots + 1)  # gaps between slots
        worst = self.max_context // self.block_tokens
        if (limit - reserved) // num_tiles < worst:
            raise LimitError(
                f"a sequence of {self.max_context} tokens may need {worst * num_tiles} memory "
                f"mappings beside {reserved} others, the system allows {limit}: raise it (Linux: "
                f"sysctl vm.max_map_count={2 * (worst * num_tiles + reserved)}) or lower the "
                "context"
            )
        return (limit - reserved) // num_tiles

    def _open_store(self, directory: str | Path | None) -> PrefixStore | None:
        if directory is None or not self.prefix.is_enabled:
            return None
        runner = self.runner
        layout = struct.pack(
            "<4Q", runner.block_tokens, runner.num_tiles, runner.bundle_bytes, runner.state_bytes
        )
        store = PrefixStore(directory, runner.model_id + layout)
        for path, tokens in store.index():
            if self.prefix.find(tokens) is None and len(tokens) < self.max_context:
                entry = self.prefix.insert(tokens)
                if entry is not None:
                    entry.path = path
        return store
