"""A model on a device: its memory, and one submission per step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .device import Buffer, Device, Heap, Plan
from .drafter import DrafterConfig, DrafterWeights
from .drafter_model import DrafterMemory, draft_blocks, inject_context
from .errors import MtlqError
from .gguf import GGUF, open_gguf
from .kernels import AttentionCache, BatchMemory, CpuKernels, DeltaState, Limits, TapeRow
from .metal_kernels import MetalKernels, row_classes
from .model import ModelMemory, forward
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


@dataclass(frozen=True)
class DraftArrays:
    """Host views of the arrays that describe the blocks to draft in a step."""

    header: npt.NDArray[np.uint32]  # num_rows, num_sequences, num_logit_rows = drafts
    input_ids: npt.NDArray[np.int32]  # [R]
    row_sequence: npt.NDArray[np.int32]  # [R]
    positions: npt.NDArray[np.int32]  # [R]
    query_start_loc: npt.NDArray[np.int32]  # [S + 1]
    sequence_slots: npt.NDArray[np.int32]  # [S]
    batched_kv_valid: npt.NDArray[np.int32]  # [S]
    logit_rows: npt.NDArray[np.int32]  # [L] rows of the drafts
    target_rows: npt.NDArray[np.int32]  # [L] rows of the target's batch that they become


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
        self._buffers: list[Buffer] = []
        self._heaps: dict[int, tuple[Heap, int]] = {}  # id -> heap, number of bundles
        self._create_caches()
        self._create_banks()
        self._create_outputs()
        self.weights = Weights(device, self.gguf, self.config)
        self.drafts: DraftArrays | None = None
        self.draft_plan: Plan | None = None
        self._drafter_weights: DrafterWeights | None = None
        self._plans = self._build_plans()  # of rows, ascending
        self.device_ns = 0

    def close(self) -> None:
        """Frees everything on the device, and closes the file if this runner opened it."""
        for _, plan in self._plans:
            plan.free()
        if self.draft_plan is not None:
            self.draft_plan.free()
        for weights in (self.weights, self._drafter_weights):
            if weights is not None:
                weights.close()
        for buffer in self._buffers:
            buffer.free()
        for heap, _ in self._heaps.values():
            heap.free()
        self._buffers.clear()
        self._heaps.clear()

    def run(self, map_ops: npt.NDArray[np.void] | None = None) -> None:
        """One step over what `batch` holds; then `logits` and `argmax` hold num_logit_rows rows.

        Where `drafts` holds blocks, their drafts become ids of `batch` first.
        """
        num_rows = self.batch.header[0]
        plans = [next(plan for max_rows, plan in self._plans if num_rows <= max_rows)]
        if self.draft_plan is not None and self.drafts is not None and self.drafts.header[0]:
            plans.insert(0, self.draft_plan)
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

    def _buffer(self, num_bytes: int) -> Buffer:
        buffer = self.device.buffer(max(num_bytes, 4))
        self._buffers.append(buffer)
        return buffer

    def _create_caches(self) -> None:
        c = self.config
        tile_bytes = self.block_tokens * c.num_kv_heads * c.head_dim * 2
        sizes = [tile_bytes] * (2 * c.layer_kinds.count("attention"))
        if self.drafter is not None:
            d = self.drafter
            tile_bytes = self.block_tokens * d.num_kv_heads * d.head_dim * 2
            sizes += [tile_bytes] * (2 * d.num_layers)
        pages = self.device.info.sparse_page_bytes or (16 << 10,)  # the device says why it has none
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
        self._buffers += self._caches
        self.cache_buffers = [cache.id for cache in self._caches]

    def _create_banks(self) -> None:
        c = self.config
        self._num_delta_layers = c.layer_kinds.count("delta")
        self._layer_state = c.num_value_heads * c.key_dim * c.value_dim  # floats
        self._layer_tail = CONV_TAIL_ROWS * c.num_channels  # floats
        self._slot_state_bytes = 4 * self._num_delta_layers * self._layer_state
        self._slot_tail_bytes = 4 * self._num_delta_layers * self._layer_tail
        self.state_bytes = self._slot_state_bytes + self._slot_tail_bytes
        self._states = self._buffer(NUM_BANKS * self.max_slots * self._slot_state_bytes)
        self._tails = self._buffer(NUM_BANKS * self.max_slots * self._slot_tail_bytes)
        tape_row = TapeRow.of(c).num_floats
        self._layer_tape = self.max_draft_rows * tape_row  # floats
        slot_tape_bytes = 4 * self._num_delta_layers * self._layer_tape
        # One row at least: plans bind the inside of a row even if none is recorded.
        self._tape = self._buffer(max(NUM_BANKS * self.max_slots * slot_tape_bytes, 4 * tape_row))

    def _create_outputs(self) -> None:
        shape = (self.max_logit_rows, self.config.num_vocab_rows)
        self._logits = self._buffer(4 * shape[0] * shape[1])
        self._argmax = self._buffer(4 * self.max_logit_rows)
        self.logits = self._logits.array(np.float32, shape)
        self.argmax = self._argmax.array(np.int32, (self.max_logit_rows,))

    def _create_batch(self) -> BatchMemory:
        rows, slots = self.pass_tokens, self.max_slots
        arrays, operands = self._arrays(
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

    def _create_drafts(self, batch: BatchMemory) -> tuple[BatchMemory, Memory]:
        """The arrays of the blocks to draft, and where their drafts go."""
        rows, slots = self.pass_tokens, self.max_slots
        arrays, operands = self._arrays(
            {
                "header": 16,
                "input_ids": rows,
                "row_sequence": rows,
                "positions": rows,
                "query_start_loc": slots + 1,
                "sequence_slots": slots,
                "batched_kv_valid": slots,
                "logit_rows": rows,
                "target_rows": rows,
            }
        )
        self.drafts = DraftArrays(**arrays)
        target_rows = operands.pop("target_rows")
        return replace(batch, **operands), target_rows

    def _arrays(
        self, lengths: dict[str, int]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Memory]]:
        """Arrays in one buffer, each on a cache line of its own, as views and as operands."""
        offsets = np.cumsum([0, *(-(-4 * n // 64) * 64 for n in lengths.values())])
        buffer = self._buffer(int(offsets[-1]))
        arrays, operands = {}, {}
        for (name, length), offset in zip(lengths.items(), map(int, offsets), strict=False):
            dtype = np.uint32 if name == "header" else np.int32
            arrays[name] = buffer.array(dtype, (length,), offset)
            operands[name] = Memory(buffer, offset)
        return arrays, operands

    def _create_rope(self, theta: float, dim: int) -> Memory:
        """cos and sin of position * theta^(-2j / dim), rounded once from double."""
        half = dim // 2
        buffer = self._buffer(4 * self.max_context * dim)
        table = buffer.array(np.float32, (self.max_context, dim))
        frequency = theta ** (-2.0 * np.arange(half) / dim)
        for start in range(0, self.max_context, 4096):  # bounds the temporaries
            rows = table[start : start + 4096]
            angle = np.arange(start, start + len(rows))[:, None] * frequency
            rows[:, :half] = np.cos(angle)
            rows[:, half:] = np.sin(angle)
        return Memory(buffer)

    def _build_plans(self) -> list[tuple[int, Plan]]:
        batch = self._create_batch()
        memory = ModelMemory(
            rope=self._create_rope(self.config.rope_theta, self.config.rotary_dim),
            layers=self._layer_memory(),
            logits=Memory(self._logits, 0, "logits"),
            argmax=Memory(self._argmax, 0, "argmax"),
        )
        drafting = self._build_drafts(batch, memory)
        classes = row_classes(self.device, self.pass_tokens)
        return [(rows, self._build_plan(batch, memory, drafting, rows)) for rows in classes]

    def _build_plan(
        self,
        batch: BatchMemory,
        memory: ModelMemory,
        drafting: DrafterMemory | None,
        max_rows: int,
    ) -> Plan:
        builder = PlanBuilder(self.device)
        kernels: CpuKernels
        if self.device.kind == "metal":
            limits = self._limits(max_rows)
            kernels = MetalKernels(builder, self.config, batch, limits, self.max_slots)
        else:
            kernels = CpuKernels(builder, self.config, batch, self._limits(max_rows))
        if self.drafter is None or self._drafter_weights is None or drafting is None:
            forward(kernels, self.weights, memory)
        else:
            features = forward(kernels, self.weights, memory, self.drafter.taps)
            inject_context(kernels, self._drafter_weights, self.drafter, features, drafting)
        plan, scratch = builder.build()
        self._buffers.append(scratch)
        return plan

    def _build_drafts(self, batch: BatchMemory, memory: ModelMemory) -> DrafterMemory | None:
        """The drafter's plan, if there is one; its memory."""
        if self.drafter is None or self.drafter_gguf is None:
            return None
        c = self.drafter
        self._drafter_weights = DrafterWeights(self.device, self.drafter_gguf, c)
        blocks, target_rows = self._create_drafts(batch)
        drafting = DrafterMemory(
            rope=self._create_rope(c.rope_theta, c.head_dim),
            caches=self._drafter_caches(),
            logits=memory.logits,
            argmax=memory.argmax,
            target_rows=target_rows,
            target_ids=batch.input_ids,
        )
        builder = PlanBuilder(self.device)
        kernels = CpuKernels(builder, self.config, blocks, self._limits(self.pass_tokens))
        embedding, head = self.weights.embedding, self.weights.output
        draft_blocks(kernels, self._drafter_weights, c, embedding, head, drafting)
        self.draft_plan, scratch = builder.build()
        self._buffers.append(scratch)
        return drafting

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
