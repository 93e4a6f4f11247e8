"""A device with what one operation of the networks needs, and seeded numbers in it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import abi
from ..config import ModelConfig
from ..device import Buffer, Device, Heap, Plan
from ..device_memory import DeviceMemory
from ..drafter import DrafterConfig, DrafterWeights
from ..gguf import GGUF, TensorType
from ..kernels import FLOAT_TYPES, LOGIT_ROWS, ROWS, CpuKernels
from ..metal_kernels import MetalKernels
from ..operands import AttentionCache, AttentionHeads, BatchMemory, DeltaState, Limits, TapeRow
from ..plan import Memory, PlanBuilder, Value
from ..quants import quantize
from ..weights import Tensor, Weights

ROW_COUNTS = (1, 4, 8, 48)  # vector kernels, small and large tiles, chunks of the delta rule
MAX_ROWS = max(ROW_COUNTS)
NUM_SLOTS = 2
NUM_BANKS = 2
MAX_CONTEXT = 256
BLOCK_TOKENS = 128
CACHED_TOKENS = 130  # of the first sequence: more than a block
MAX_DRAFT_ROWS = 8
PENDING_ROWS = 2  # of the first sequence where it verifies drafts
MAX_RUN_S = 60
SCALE_OFFSETS = {  # where the halves of a block lie, in bytes
    TensorType.Q8_0: (0,),
    TensorType.Q4_0: (0,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_XS: (0,),
}

Array = npt.NDArray[Any]
Operation = Callable[["Workbench"], Sequence[Value | Array]]
"""Records something of a network; says which values and host arrays have its results."""


@dataclass(frozen=True)
class Shared:
    """Memory that outlives an operation: as an operand, and as the host sees it."""

    memory: Memory
    view: Array


@dataclass(frozen=True)
class Cache:
    """K and V of one layer, and the heap pages behind them as f16 [tiles, values]."""

    layer: AttentionCache
    view: Array


class Workbench:
    """A device with the tensors of a model and its drafter, to run one operation at a time.

    The numbers of a run depend on nothing but its rows. Activations are multiples of 1/64 with the
    largest in each 32, so that the cpu's int8 activations are exact and devices may be compared.
    """

    def __init__(self, device: Device, model: GGUF, drafter: GGUF):
        self.device = device
        self.config = ModelConfig.from_gguf(model)
        self.drafter_config = DrafterConfig.from_gguf(drafter)
        self.weights = Weights(device, model, self.config)
        self.drafter = DrafterWeights(device, drafter, self.drafter_config)
        self._memory = DeviceMemory(device)
        self._heaps: list[Heap] = []
        self._initial: list[tuple[Array, Array]] = []  # what memory holds before a run
        self._rng = np.random.default_rng(0)
        c, d = self.config, self.drafter_config
        self._batch, self._operands = self._create_batch()
        self.rope = self._memory.rope(c.rope_theta, c.rotary_dim, MAX_CONTEXT)
        self.drafter_rope = self._memory.rope(d.rope_theta, d.head_dim, MAX_CONTEXT)
        self.cache = self._create_cache(c.num_kv_heads, c.head_dim)
        self.drafter_cache = self._create_cache(d.num_kv_heads, d.head_dim)
        self._create_states()
        self.features = self._shared(self._numbers(2 * MAX_ROWS, len(d.taps) * d.hidden_dim))
        logits = self._rng.standard_normal((MAX_ROWS, c.num_vocab_rows), np.float32)
        self.logits = self._shared(np.round(8 * logits) / 8)  # the largest occurs more than once
        self.ids = self._shared(np.arange(MAX_ROWS, dtype=np.int32))
        self.target_ids = self._shared(np.full(MAX_ROWS, -1, np.int32))
        self.target_rows = self._shared(self._rng.permutation(MAX_ROWS).astype(np.int32))

    @property
    def drafter_heads(self) -> AttentionHeads:
        d = self.drafter_config
        return AttentionHeads(d.num_heads, d.num_kv_heads, d.head_dim, d.head_dim, d.norm_eps)

    def run(self, operation: Operation, num_rows: int) -> list[Array]:
        """The results of an operation over num_rows rows: of its values and of arrays it names."""
        with self._planned(operation, num_rows) as (plan, scratch, results):
            self.device.wait(self.device.submit((plan,)), MAX_RUN_S)
            return [self._copy(result, scratch) for result in results]

    def fastest_ns(self, operation: Operation, num_rows: int) -> int:
        """The least device time of an operation, of ten runs."""
        times = []
        with self._planned(operation, num_rows) as (plan, _, _):
            for _ in range(10):
                ticket = self.device.submit((plan,))
                self.device.wait(ticket, MAX_RUN_S)
                times.append(self.device.ticket_time(ticket))
        return min(times)

    def close(self) -> None:
        self._memory.free()
        self.weights.close()
        self.drafter.close()
        for heap in self._heaps:
            heap.free()

    # ---- what operations are made of -----------------------------------------------------------

    def value(self, dim: int, *, scale: float = 1.0, rows: int = ROWS) -> Value:
        """An activation [rows, dim] of seeded numbers."""
        value = self.kernels.plan.value(rows, dim, 4 * dim * self.num_rows)
        value.first_epoch = 0  # written before the plan runs
        self._inputs.append((value, scale * self._numbers(self.num_rows, dim)))
        return value

    def tensor(self, weight_type: TensorType, shape: tuple[int, ...], raw: Array | int) -> Tensor:
        """A tensor of these bytes, or of a byte repeated, that lives as long as the run."""
        num_bytes = math.prod(shape[:-1]) * weight_type.row_bytes(shape[-1])
        buffer = self.device.buffer(num_bytes)
        self._lent.append(buffer)
        buffer.array(np.uint8, (num_bytes,))[:] = raw
        return Tensor(buffer, 0, weight_type, shape)

    def floats(self, numbers: Array) -> Tensor:
        return self.tensor(TensorType.F32, numbers.shape, numbers.reshape(-1).view(np.uint8))

    def matrix(self, weight_type: TensorType, num_rows: int, dim: int) -> Tensor:
        """Seeded weights: random codes under small scales."""
        shape = (num_rows, dim)
        if weight_type in FLOAT_TYPES:
            raw = quantize(self._rng.standard_normal(shape, np.float32), weight_type)
            return self.tensor(weight_type, shape, raw.reshape(-1))
        num_blocks = num_rows * dim // weight_type.block_values
        blocks = self._rng.integers(0, 256, (num_blocks, weight_type.block_bytes), np.uint8)
        for offset in SCALE_OFFSETS[weight_type]:
            scales = (0.01 * self._rng.standard_normal((num_blocks, 1))).astype(np.float16)
            blocks[:, offset : offset + 2] = scales.view(np.uint8)
        return self.tensor(weight_type, shape, blocks.reshape(-1))

    def small_numbers(self, *shape: int) -> Array:
        """Eighths from -1 to 1: sums of a few products of them are exact in f32."""
        return (self._rng.integers(-8, 9, shape) / 8).astype(np.float32)

    def verify_drafts(self) -> None:
        """Sequences of few rows record them; the first replays what an earlier draft left."""
        starts = self._batch["query_start_loc"]
        for sequence, slot in enumerate(self._batch["sequence_slots"]):
            if starts[sequence + 1] - starts[sequence] <= MAX_DRAFT_ROWS:
                self._batch["state"][sequence] = slot
        self._batch["pending"][0] = PENDING_ROWS

    def draft_blocks(self) -> None:
        """Each sequence is a block of drafts: an anchor, then rows whose tokens are wanted."""
        num_sequences = int(self._batch["header"][1])
        anchors = self._batch["query_start_loc"][:num_sequences]
        rows = np.setdiff1d(np.arange(self.num_rows), anchors)
        self._batch["logit_rows"][: len(rows)] = rows
        self._batch["header"][LOGIT_ROWS] = len(rows)

    # ---- one run -------------------------------------------------------------------------------

    @contextmanager
    def _planned(
        self, operation: Operation, num_rows: int
    ) -> Iterator[tuple[Plan, Buffer, Sequence[Value | Array]]]:
        """A plan of one operation whose inputs are written, its scratch memory and its results."""
        self.num_rows = num_rows
        self._rng = np.random.default_rng(num_rows)
        self._inputs: list[tuple[Value, Array]] = []
        self._lent: list[Buffer | Plan] = []
        self._fill()
        builder = PlanBuilder(self.device)
        self.kernels = self._new_kernels(builder)
        try:
            results = operation(self)
            scratch = self.device.buffer(builder.place_values())
            self._lent += [scratch]
            plan = builder.build(scratch)
            self._lent += [plan]
            for value, numbers in self._inputs:
                scratch.array(np.float32, numbers.shape, value.offset_bytes)[:] = numbers
            yield plan, scratch, results
        finally:
            for item in self._lent:
                item.free()

    def _numbers(self, *shape: int) -> Array:
        numbers = self._rng.integers(-127, 128, shape)
        numbers[..., ::32] = 127
        return (numbers / 64).astype(np.float32)

    def _fill(self) -> None:
        """Arrays, caches and states of a step: a sequence, from eight rows on two."""
        batch, lengths = self._batch, [self.num_rows]
        if self.num_rows >= 8:
            lengths = [self.num_rows - 3, 3]
        kv_valid = [CACHED_TOKENS, 0]
        batch["header"][:4] = self.num_rows, len(lengths), self.num_rows, 1
        batch["input_ids"][:] = self._rng.integers(0, self.config.num_tokens, MAX_ROWS)
        batch["query_start_loc"][:] = self.num_rows
        batch["query_start_loc"][: len(lengths) + 1] = np.cumsum([0, *lengths])
        batch["row_sequence"][: self.num_rows] = np.repeat(np.arange(len(lengths)), lengths)
        positions = [kv + np.arange(n) for kv, n in zip(kv_valid, lengths, strict=False)]
        batch["positions"][: self.num_rows] = np.concatenate(positions)
        batch["sequence_slots"][:] = 1, 0
        batch["batched_kv_valid"][:] = kv_valid
        batch["bank"][:] = 1, 0
        batch["state"][:] = -1
        batch["pending"][:] = 0
        batch["logit_rows"][:] = np.arange(MAX_ROWS)[::-1] % self.num_rows
        for view, numbers in self._initial:
            view[:] = numbers

    def _new_kernels(self, builder: PlanBuilder) -> CpuKernels:
        limits = Limits(self.num_rows, self.num_rows, MAX_CONTEXT, BLOCK_TOKENS, MAX_DRAFT_ROWS)
        if self.device.kind == "metal":
            return MetalKernels(builder, self.config, self._operands, limits, NUM_SLOTS)
        return CpuKernels(builder, self.config, self._operands, limits)

    def _copy(self, result: Value | Array, scratch: Buffer) -> Array:
        if isinstance(result, Value):
            shape = (self.num_rows, result.dim)
            result = scratch.array(np.float32, shape, result.offset_bytes)
        return result.copy()

    # ---- construction --------------------------------------------------------------------------

    def _shared(self, numbers: Array) -> Shared:
        """Memory that holds these numbers before each run."""
        buffer = self._memory.buffer(numbers.nbytes)
        view = buffer.array(numbers.dtype, numbers.shape)
        self._initial.append((view, numbers))
        return Shared(Memory(buffer, 0, buffer.id), view)

    def _create_batch(self) -> tuple[dict[str, Array], BatchMemory]:
        lengths = {field.name: NUM_SLOTS for field in dataclasses.fields(BatchMemory)}
        lengths |= {"header": 16, "query_start_loc": NUM_SLOTS + 1}
        rows = ("input_ids", "row_sequence", "positions", "logit_rows")
        lengths |= dict.fromkeys(rows, MAX_ROWS)
        arrays, operands = self._memory.arrays(lengths)
        return arrays, BatchMemory(**operands)

    def _create_cache(self, num_kv_heads: int, head_dim: int) -> Cache:
        """Sparse buffers whose tiles lie in a heap in reverse order."""
        tile_bytes = 2 * BLOCK_TOKENS * num_kv_heads * head_dim
        num_tiles = NUM_SLOTS * MAX_CONTEXT // BLOCK_TOKENS
        page_bytes = self.device.info.sparse_page_bytes[0]
        pages = tile_bytes // page_bytes
        heap = self.device.heap(2 * num_tiles * tile_bytes, page_bytes)
        self._heaps.append(heap)
        size = num_tiles * tile_bytes
        keys, values = (self._memory.adopt(self.device.sparse(size, page_bytes)) for _ in range(2))
        ops = np.zeros(2 * num_tiles, abi.MAP_OP)
        ops["buffer"] = np.repeat([keys.id, values.id], num_tiles)
        ops["heap"] = heap.id
        ops["page"] = np.tile(np.arange(num_tiles), 2) * pages
        ops["heap_page"] = np.arange(2 * num_tiles)[::-1] * pages
        ops["num_pages"] = pages
        self.device.map(ops)
        view = heap.array(np.float16, (2 * num_tiles, tile_bytes // 2))
        self._initial.append((view, (self._numbers(*view.shape) / 2).astype(np.float16)))
        layer = AttentionCache(Memory(keys, 0, keys.id), Memory(values, 0, values.id))
        return Cache(layer, view)

    def _create_states(self) -> None:
        """States, tails of the convolution and the tape of one layer."""
        c, slots = self.config, NUM_BANKS * NUM_SLOTS
        state, tail = c.num_value_heads * c.key_dim * c.value_dim, 3 * c.num_channels
        tape = MAX_DRAFT_ROWS * TapeRow.of(c).num_floats
        self.states = self._shared(self._numbers(slots, state) / 16)
        self.tails = self._shared(self._numbers(slots, tail))
        self.tape = self._shared(self._numbers(slots, tape) / 16)
        self.delta_state = DeltaState(
            self.states.memory,
            self.tails.memory,
            self.tape.memory,
            state_bank_stride=NUM_SLOTS * state,
            state_slot_stride=state,
            tail_bank_stride=NUM_SLOTS * tail,
            tail_slot_stride=tail,
            tape_bank_stride=NUM_SLOTS * tape,
            tape_slot_stride=tape,
        )
