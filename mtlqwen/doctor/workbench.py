"""A device with what one operation of the network needs, and seeded numbers in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import abi
from ..config import ModelConfig
from ..device import Buffer, Device, Plan
from ..device_memory import DeviceMemory
from ..gguf import GGUF, TensorType
from ..kernels import (
    ROWS,
    AttentionCache,
    BatchMemory,
    CpuKernels,
    DeltaState,
    Limits,
    TapeRow,
)
from ..metal_kernels import MetalKernels
from ..plan import Memory, PlanBuilder, Value
from ..weights import Tensor, Weights

ROW_COUNTS = (1, 4, 8, 48)  # vector kernels, small and large tiles, chunks of the delta rule
NUM_SLOTS = 2
MAX_CONTEXT = 256
BLOCK_TOKENS = 128
CACHED_TOKENS = 130  # of the first sequence: more than a block
MAX_RUN_S = 60

Array = npt.NDArray[Any]
Operation = Callable[["Workbench"], Sequence[Value | Array]]
"""Records something of the network; says which values and host arrays have its results."""


class Workbench:
    """A device with the tensors of a model, caches and states, to run one operation at a time.

    The numbers of a run depend on nothing but its rows. Activations are multiples of 1/64 with the
    largest in each 32, so that the cpu's int8 activations are exact and devices may be compared.
    """

    def __init__(self, device: Device, gguf: GGUF):
        self.config = ModelConfig.from_gguf(gguf)
        self.device = device
        self.weights = Weights(device, gguf, self.config)
        self._memory = DeviceMemory(device)
        self._batch, self._operands = self._create_batch()
        self.rope = self._memory.rope(self.config.rope_theta, self.config.rotary_dim, MAX_CONTEXT)
        self.cache = self._create_cache()
        self.delta_state = self._create_states()
        self._create_outputs()
        self._rng = np.random.default_rng(0)
        self._initial = self._initial_numbers()

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

    def value(self, dim: int, *, scale: float = 1.0, rows: int = ROWS) -> Value:
        """An activation [num_rows, dim] of seeded numbers."""
        value = self.kernels.plan.value(rows, dim, 4 * dim * self.num_rows)
        value.first_epoch = 0  # written before the plan runs
        self._inputs.append((value, scale * self._numbers(self.num_rows, dim)))
        return value

    def matrix(self, num_rows: int, dim: int) -> Tensor:
        """A matrix of Q8_0 for measurements: all its pages are there, its weights are the same."""
        num_bytes = num_rows * TensorType.Q8_0.row_bytes(dim)
        buffer = self._memory.buffer(num_bytes)
        buffer.array(np.uint8, (num_bytes,))[:] = 1
        return Tensor(buffer, 0, TensorType.Q8_0, (num_rows, dim))

    def close(self) -> None:
        self._memory.free()
        self.weights.close()
        self._heap.free()

    # ---- one run -------------------------------------------------------------------------------

    @contextmanager
    def _planned(
        self, operation: Operation, num_rows: int
    ) -> Iterator[tuple[Plan, Buffer, Sequence[Value | Array]]]:
        """A plan of one operation whose inputs are written, its scratch memory and its results."""
        self.num_rows = num_rows
        self._rng = np.random.default_rng(num_rows)
        self._inputs: list[tuple[Value, Array]] = []
        self._fill()
        builder = PlanBuilder(self.device)
        self.kernels = self._new_kernels(builder)
        results = operation(self)
        plan, scratch = builder.build()
        try:
            for value, numbers in self._inputs:
                scratch.array(np.float32, numbers.shape, value.offset_bytes)[:] = numbers
            yield plan, scratch, results
        finally:
            plan.free()
            scratch.free()

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
        batch["header"][:3] = self.num_rows, len(lengths), self.num_rows
        batch["input_ids"][:] = self._rng.integers(0, self.config.num_tokens, max(ROW_COUNTS))
        batch["query_start_loc"][: len(lengths) + 1] = np.cumsum([0, *lengths])
        batch["row_sequence"][: self.num_rows] = np.repeat(np.arange(len(lengths)), lengths)
        positions = [kv + np.arange(n) for kv, n in zip(kv_valid, lengths, strict=False)]
        batch["positions"][: self.num_rows] = np.concatenate(positions)
        batch["sequence_slots"][:] = 1, 0
        batch["batched_kv_valid"][:] = kv_valid
        batch["bank"][:] = 1, 0
        batch["state"][:] = -1
        batch["logit_rows"][:] = np.arange(max(ROW_COUNTS))[::-1] % self.num_rows
        for array, numbers in self._initial:
            array[:] = numbers

    def _initial_numbers(self) -> list[tuple[Array, Array]]:
        """What caches, states, logits and ids hold before a run."""
        logits = self._rng.standard_normal(self.logit_numbers.shape, np.float32)
        return [
            (self.cached, self._numbers(*self.cached.shape).astype(np.float16) / 2),
            (self.states, self._numbers(*self.states.shape) / 16),
            (self.tails, self._numbers(*self.tails.shape)),
            (self.logit_numbers, np.round(8 * logits) / 8),  # the largest occurs more than once
            (self.id_numbers, np.full(self.id_numbers.shape, -1, np.int32)),
        ]

    def _new_kernels(self, builder: PlanBuilder) -> CpuKernels:
        limits = Limits(self.num_rows, self.num_rows, MAX_CONTEXT, BLOCK_TOKENS)
        if self.device.kind == "metal":
            return MetalKernels(builder, self.config, self._operands, limits, NUM_SLOTS)
        return CpuKernels(builder, self.config, self._operands, limits)

    def _copy(self, result: Value | Array, scratch: Buffer) -> Array:
        if isinstance(result, Value):
            shape = (self.num_rows, result.dim)
            result = scratch.array(np.float32, shape, result.offset_bytes)
        return result.copy()

    # ---- construction --------------------------------------------------------------------------

    def _create_batch(self) -> tuple[dict[str, Array], BatchMemory]:
        lengths = {field.name: NUM_SLOTS for field in dataclasses.fields(BatchMemory)}
        lengths |= {"header": 16, "query_start_loc": NUM_SLOTS + 1}
        rows = ("input_ids", "row_sequence", "positions", "logit_rows")
        lengths |= dict.fromkeys(rows, max(ROW_COUNTS))
        arrays, operands = self._memory.arrays(lengths)
        return arrays, BatchMemory(**operands)

    def _create_cache(self) -> AttentionCache:
        """K and V of a layer: sparse buffers whose tiles lie in a heap in reverse order."""
        c = self.config
        tile_bytes = 2 * BLOCK_TOKENS * c.num_kv_heads * c.head_dim
        num_tiles = NUM_SLOTS * MAX_CONTEXT // BLOCK_TOKENS
        page_bytes = self.device.info.sparse_page_bytes[0]
        pages = tile_bytes // page_bytes
        self._heap = self.device.heap(2 * num_tiles * tile_bytes, page_bytes)
        self.cached = self._heap.array(np.float16, (2 * num_tiles, tile_bytes // 2))
        size = num_tiles * tile_bytes
        keys, values = (self._memory.adopt(self.device.sparse(size, page_bytes)) for _ in range(2))
        ops = np.zeros(2 * num_tiles, abi.MAP_OP)
        ops["buffer"] = np.repeat([keys.id, values.id], num_tiles)
        ops["heap"] = self._heap.id
        ops["page"] = np.tile(np.arange(num_tiles), 2) * pages
        ops["heap_page"] = np.arange(2 * num_tiles)[::-1] * pages
        ops["num_pages"] = pages
        self.device.map(ops)
        return AttentionCache(Memory(keys, 0, "keys"), Memory(values, 0, "values"))

    def _create_states(self) -> DeltaState:
        """Two banks of the states and of the convolution's tails of one layer, and no drafts."""
        c = self.config
        state = c.num_value_heads * c.key_dim * c.value_dim
        tail = 3 * c.num_channels
        states, tails, tape = (
            self._memory.buffer(4 * num_floats)
            for num_floats in (
                2 * NUM_SLOTS * state,
                2 * NUM_SLOTS * tail,
                TapeRow.of(c).num_floats,
            )
        )
        self.states = states.array(np.float32, (2 * NUM_SLOTS, state))
        self.tails = tails.array(np.float32, (2 * NUM_SLOTS, tail))
        return DeltaState(
            Memory(states, 0, "states"),
            Memory(tails, 0, "tails"),
            Memory(tape, 0, "tape"),
            state_bank_stride=NUM_SLOTS * state,
            state_slot_stride=state,
            tail_bank_stride=NUM_SLOTS * tail,
            tail_slot_stride=tail,
            tape_bank_stride=0,
            tape_slot_stride=0,
        )

    def _create_outputs(self) -> None:
        num_rows, dim = max(ROW_COUNTS), self.config.num_vocab_rows
        logits, ids = self._memory.buffer(4 * num_rows * dim), self._memory.buffer(4 * num_rows)
        self.logits, self.ids = Memory(logits, 0, "logits"), Memory(ids, 0, "ids")
        self.logit_numbers = logits.array(np.float32, (num_rows, dim))
        self.id_numbers = ids.array(np.int32, (num_rows,))
