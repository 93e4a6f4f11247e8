"""A model on a device: its memory, and one submission per step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .device import Device, Heap
from .device_memory import DeviceMemory, RowPlans
from .drafter import DrafterConfig
from .drafter_runner import DrafterRunner, Target
from .errors import MtlqError
from .gguf import GGUF, open_gguf
from .kernels import CpuKernels
from .metal_kernels import MetalKernels
from .model import ModelMemory, forward
from .operands import AttentionCache, BatchMemory, DeltaState, Limits, TapeRow
from .plan import Memory, PlanBuilder
from .weights import Weights

NUM_BANKS = 2
UNBOUND = -1  # in `state`: the sequence verifies no draft
CONV_TAIL_ROWS = 3  # raw rows that a convolution over 4 tokens remembers


@dataclass(frozen=True)
class BatchArrays:
    """Host views of the arrays that describe one step (R rows, S sequences)."""

    header: npt.NDArray[np.uint32]  # num_rows, num_sequences, num_logit_rows
    input_ids: npt.NDArray[np.int32]  # [R]
    row_sequence: npt.NDArray[np.int32]  # [R] index among the S sequences
    positions: npt.NDArray[np.int32]  # [R]
    query_start_loc: npt.NDArray[np.int32]  # [S + 1]
    sequence_slots: npt.NDArray[np.int32]  # [S]
    batched_kv_valid: npt.NDArray[np.int32]  # [S]
    bank: npt.NDArray[np.int32]  # [S] bank that holds the slot's state before the step
    state: npt.NDArray[np.int32]  # [S] tape that records the step's rows, or UNBOUND
    pending: npt.NDArray[np.int32]  # [S] rows of the bank's tape to replay first
    logit_rows: npt.NDArray[np.int32]  # [L] rows whose logits are wanted


class Runner:
    """Runs packed batches. The caller maps bundles by map operations and flips banks.

    Nothing is committed for slots and context that are not used: the K/V buffers are address
    space, GDN banks are touched on first use.
    """

    def __init__(
        self,
        device: Device,
        model: str | Path | GGUF,
        drafter: GGUF | None = None,
        *,
        max_slots: int = 8,
        max_context: int = 65_536,
        pass_tokens: int = 128,
        block_tokens: int = 128,
        max_draft_rows: int = 0,
    ):
        if max_context % block_tokens:
            raise MtlqError(
                f"max_context {max_context} is not a multiple of block_tokens {block_tokens}; "
                f"use {-(-max_context // block_tokens) * block_tokens}"
            )
        self.device = device
        self.gguf = model if isinstance(model, GGUF) else open_gguf(model)
        self.config = ModelConfig.from_gguf(self.gguf)
        self.max_slots = max_slots
        self.max_context = max_context
        self.pass_tokens = pass_tokens
        self.block_tokens = block_tokens
        self.max_logit_rows = pass_tokens
        self.max_draft_rows = max_draft_rows
        self.drafter_gguf = drafter
        self.drafter: DrafterConfig | None = None
        self.model_id = _identity(self.gguf)
        if drafter is not None:
            self.drafter = DrafterConfig.from_gguf(drafter)
            self.drafter.check_target(self.config)
            self.model_id += _identity(drafter)
        self.memory = DeviceMemory(device)
        self._heaps: dict[int, tuple[Heap, int]] = {}  # id -> heap, number of bundles
        self._create_caches()
        self._create_banks()
        self._create_outputs()
        self.weights = Weights(device, self.gguf, self.config)
        batch, memory = self._create_batch(), self._model_memory()
        self._plans = RowPlans(
            self.memory,
            pass_tokens,
            lambda builder, rows: forward(
                self._kernels(builder, batch, rows),
                self.weights,
                memory,
                self.drafter.taps if self.drafter else (),
            ),
        )
        self.drafting = self._create_drafting(batch, memory)
        self.device_ns = 0

    def close(self) -> None:
        """Frees everything on the device, and closes the file if this runner opened it."""
        self._plans.free()
        if self.drafting is not None:
            self.drafting.close()
        self.weights.close()
        self.memory.free()
        for heap, _ in self._heaps.values():
            heap.free()
        self._heaps.clear()

    def run(self, map_ops: npt.NDArray[np.void] | None = None) -> None:
        """One step over what `batch` holds; then `logits` and `argmax` hold num_logit_rows rows.

        Before it runs what the arrays of `drafting` describe: features become context, and drafts
        become ids of `batch`.
        """
        plans = [] if self.drafting is None else self.drafting.plans()
        num_rows, num_sequences = self.batch.header[:2]
        if num_sequences:
            plans.append(self._plans.of(max(num_rows, num_sequences)))  # some have no rows
        ticket = self.device.submit(plans, map_ops)
        self.device.wait(ticket)
        self.device_ns = self.device.ticket_time(ticket)

    # ---- K/V bundles ---------------------------------------------------------------------------

    @property
    def num_tiles(self) -> int:
        """Tiles of a bundle: K and V of every attention layer, the target's, then the drafter's."""
        return len(self.cache_buffers)

    @property
    def bundle_bytes(self) -> int:
        return sum(self.tile_pages) * self.page_bytes

    def new_heap(self, num_bundles: int) -> int:
        """A chunk of physical memory: its id.

        Tile t of bundle b, of p[t] pages, is at page num_bundles * sum(p[:t]) + b * p[t].
        """
        heap = self.device.heap(num_bundles * self.bundle_bytes, self.page_bytes)
        self._heaps[heap.id] = heap, num_bundles
        return heap.id

    def free_heap(self, heap_id: int) -> None:
        heap, _ = self._heaps.pop(heap_id)
        heap.free()

    def bundle_view(self, heap_id: int, bundle: int) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each tile of a bundle."""
        heap, num_bundles = self._heaps[heap_id]
        tiles, tile_bytes, start = [], [n * self.page_bytes for n in self.tile_pages], 0
        for size in tile_bytes:
            tiles.append(heap.array(np.uint8, (size,), start + bundle * size))
            start += num_bundles * size
        return tiles

    # ---- GDN state -----------------------------------------------------------------------------

    def save_state(self, slot: int, bank: int, out: npt.NDArray[np.uint8]) -> None:
        """Copies a slot's GDN state and conv tails to `out` [state_bytes]."""
        states, tails = self._slab(slot, bank)
        out[: states.nbytes] = states
        out[states.nbytes :] = tails

    def load_state(self, slot: int, bank: int, source: npt.NDArray[np.uint8]) -> None:
        states, tails = self._slab(slot, bank)
        states[:] = source[: states.nbytes]
        tails[:] = source[states.nbytes :]

    def _slab(self, slot: int, bank: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        index = bank * self.max_slots + slot
        return (
            self._states.array(np.uint8, (self._slot_state_bytes,), index * self._slot_state_bytes),
            self._tails.array(np.uint8, (self._slot_tail_bytes,), index * self._slot_tail_bytes),
        )

    # ---- construction --------------------------------------------------------------------------

    def _create_caches(self) -> None:
        c = self.config
        tile_bytes = self.block_tokens * c.num_kv_heads * c.head_dim * 2
        sizes = [tile_bytes] * (2 * c.layer_kinds.count("attention"))
        if self.drafter is not None:
            d = self.drafter
            tile_bytes = self.block_tokens * d.num_kv_heads * d.head_dim * 2
            sizes += [tile_bytes] * (2 * d.num_layers)
        pages = self.device.info.sparse_page_bytes
        fitting = [n for n in pages if not any(b % n for b in sizes)]
        if not fitting:
            raise MtlqError(
                f"K/V tiles of {self.block_tokens} tokens are {sorted(set(sizes))} bytes, no"
                f" multiple of the device's pages {pages}; use larger blocks"
            )
        self.page_bytes = max(fitting)
        self.tile_pages = [size // self.page_bytes for size in sizes]
        num_blocks = self.max_slots * self.max_context // self.block_tokens
        self._caches = [self.device.sparse(num_blocks * size, self.page_bytes) for size in sizes]
        self.cache_buffers = [self.memory.adopt(cache).id for cache in self._caches]

    def _create_banks(self) -> None:
        c = self.config
        self._num_delta_layers = c.layer_kinds.count("delta")
        self._layer_state = c.num_value_heads * c.key_dim * c.value_dim  # floats
        self._layer_tail = CONV_TAIL_ROWS * c.num_channels  # floats
        self._slot_state_bytes = 4 * self._num_delta_layers * self._layer_state
        self._slot_tail_bytes = 4 * self._num_delta_layers * self._layer_tail
        self.state_bytes = self._slot_state_bytes + self._slot_tail_bytes
        self._states = self.memory.buffer(NUM_BANKS * self.max_slots * self._slot_state_bytes)
        self._tails = self.memory.buffer(NUM_BANKS * self.max_slots * self._slot_tail_bytes)
        tape_row = TapeRow.of(c).num_floats
        self._layer_tape = self.max_draft_rows * tape_row  # floats
        slot_tape_bytes = 4 * self._num_delta_layers * self._layer_tape
        # One row at least: plans bind the inside of a row even if none is recorded.
        num_bytes = max(NUM_BANKS * self.max_slots * slot_tape_bytes, 4 * tape_row)
        self._tape = self.memory.buffer(num_bytes)

    def _create_outputs(self) -> None:
        shape = (self.max_logit_rows, self.config.num_vocab_rows)
        self._logits = self.memory.buffer(4 * shape[0] * shape[1])
        self._argmax = self.memory.buffer(4 * self.max_logit_rows)
        self.logits = self._logits.array(np.float32, shape)
        self.argmax = self._argmax.array(np.int32, (self.max_logit_rows,))

    def _create_batch(self) -> BatchMemory:
        rows, slots = self.pass_tokens, self.max_slots
        arrays, operands = self.memory.arrays(
            {
                "header": 16,
                "input_ids": rows,
                "row_sequence": rows,
                "positions": rows,
                "query_start_loc": slots + 1,
                "sequence_slots": slots,
                "batched_kv_valid": slots,
                "bank": slots,
                "state": slots,
                "pending": slots,
                "logit_rows": self.max_logit_rows,
            }
        )
        self.batch = BatchArrays(**arrays)
        self.batch.state[:] = UNBOUND
        return BatchMemory(**operands)

    def _model_memory(self) -> ModelMemory:
        c, memory = self.config, self.memory
        features = None
        if self.drafter is not None:
            num_floats = self.pass_tokens * len(self.drafter.taps) * c.hidden_dim
            features = Memory(memory.buffer(4 * num_floats), 0, "features")
        return ModelMemory(
            rope=memory.rope(c.rope_theta, c.rotary_dim, self.max_context),
            layers=self._layer_memory(),
            features=features,
            logits=Memory(self._logits, 0, "logits"),
            argmax=Memory(self._argmax, 0, "argmax"),
        )

    def _create_drafting(self, batch: BatchMemory, memory: ModelMemory) -> DrafterRunner | None:
        if self.drafter is None or self.drafter_gguf is None or memory.features is None:
            return None
        target = Target(
            self.weights.embedding,
            self.weights.output,
            batch,
            memory.features,
            memory.logits,
            memory.argmax,
            self.gguf.num_bytes,
        )
        return DrafterRunner(
            self.memory,
            self.drafter_gguf,
            self.drafter,
            target,
            self._drafter_caches(),
            self._kernels,
            self._limits(self.pass_tokens),
            self.max_slots,
        )

    def _kernels(self, builder: PlanBuilder, batch: BatchMemory, max_rows: int) -> CpuKernels:
        limits = self._limits(max_rows)
        if self.device.kind == "metal":
            return MetalKernels(builder, self.config, batch, limits, self.max_slots)
        return CpuKernels(builder, self.config, batch, limits)

    def _limits(self, max_rows: int) -> Limits:
        return Limits(
            max_rows,
            min(max_rows, self.max_logit_rows),
            self.max_context,
            self.block_tokens,
            self.max_draft_rows,
        )

    def _drafter_caches(self) -> list[AttentionCache]:
        first = 2 * self.config.layer_kinds.count("attention")
        own = self._caches[first:]
        return [
            AttentionCache(Memory(keys, 0, ("draft k", i)), Memory(values, 0, ("draft v", i)))
            for i, (keys, values) in enumerate(zip(own[::2], own[1::2], strict=True))
        ]

    def _layer_memory(self) -> list[AttentionCache | DeltaState]:
        layers: list[AttentionCache | DeltaState] = []
        num_attention = num_delta = 0
        state_slot = self._num_delta_layers * self._layer_state
        tape_slot = self._num_delta_layers * self._layer_tape
        tail_slot = self._num_delta_layers * self._layer_tail
        for index, kind in enumerate(self.config.layer_kinds):
            if kind == "attention":
                keys, values = self._caches[2 * num_attention : 2 * num_attention + 2]
                layers.append(
                    AttentionCache(Memory(keys, 0, ("k", index)), Memory(values, 0, ("v", index)))
                )
                num_attention += 1
            else:
                layers.append(
                    DeltaState(
                        Memory(self._states, 4 * num_delta * self._layer_state, ("state", index)),
                        Memory(self._tails, 4 * num_delta * self._layer_tail, ("tail", index)),
                        Memory(self._tape, 4 * num_delta * self._layer_tape, ("tape", index)),
                        state_bank_stride=self.max_slots * state_slot,
                        state_slot_stride=state_slot,
                        tail_bank_stride=self.max_slots * tail_slot,
                        tail_slot_stride=tail_slot,
                        tape_bank_stride=self.max_slots * tape_slot,
                        tape_slot_stride=tape_slot,
                    )
                )
                num_delta += 1
        return layers


def _identity(gguf: GGUF) -> bytes:
    """A digest of what decides a model's numbers: tensor table and a sample of every tensor."""
    digest = hashlib.sha256()
    for info in gguf.tensors.values():
        digest.update(f"{info.name} {info.type} {info.shape} {info.num_bytes}\n".encode())
        shard = gguf.shards[info.shard]
        digest.update(shard[info.offset_bytes : info.offset_bytes + min(info.num_bytes, 4096)])
    return digest.digest()
