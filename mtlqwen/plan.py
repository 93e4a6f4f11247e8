"""A forward pass as data: dispatch records with barriers and scratch memory worked out once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import abi
from .device import Buffer, Device, Pipeline, Plan

ALIGNMENT = 256  # bytes between values in scratch memory


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory that outlives a step: weights, caches, batch arrays."""

    buffer: Buffer
    offset_bytes: int = 0
    key: Hashable = None  # what hazards are tracked on; None: no kernel writes it

    def at(self, offset_bytes: int) -> Memory:
        return Memory(self.buffer, self.offset_bytes + offset_bytes, self.key)


@dataclass(eq=False)
class Value:
    """An activation [rows, dim], in scratch from the epoch that writes it to its last reader's."""

    rows: int  # index of the batch header word with the number of rows
    dim: int
    num_bytes: int
    first_epoch: int = -1
    last_epoch: int = -1
    offset_bytes: int = -1


Operand = Memory | Value


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid, which a device may ignore. `barrier`: wait for the launch before."""

    pipeline: Pipeline
    grid: tuple[int, int, int] = (1, 1, 1)
    num_threads: int = 1  # of a threadgroup
    barrier: bool = False


@dataclass
class Step:
    """One dispatch, as recorded."""

    launch: Launch
    args: bytes
    operands: Sequence[Operand]
    barrier: bool
    label: str


@dataclass
class PlanBuilder:
    """Records dispatches in program order.

    A dispatch waits (MTLQ_BARRIER) only if it reads or overwrites what a dispatch since the last
    barrier wrote, or overwrites what one read. Dispatches between two barriers form an epoch and
    may overlap; two values share scratch only if no epoch needs both, so placement adds no hazard.
    """

    device: Device
    _steps: list[Step] = field(default_factory=list)
    _values: list[Value] = field(default_factory=list)
    _epoch: int = 0
    _read: set[Hashable] = field(default_factory=set)
    _written: set[Hashable] = field(default_factory=set)

    def value(self, rows: int, dim: int, num_bytes: int) -> Value:
        """A new activation that takes at most num_bytes."""
        value = Value(rows, dim, num_bytes)
        self._values.append(value)
        return value

    def dispatch(
        self,
        kernel: str,
        args: bytes,
        operands: Sequence[Operand],
        writes: Sequence[Operand],
        label: str = "",
    ) -> None:
        """Appends one launch of a kernel of the device. `writes`: which operands it writes."""
        launches = (Launch(self.device.pipeline(kernel)),)
        self.launch(launches, args, operands, writes, label or kernel)

    def launch(
        self,
        launches: Sequence[Launch],
        args: bytes,
        operands: Sequence[Operand],
        writes: Sequence[Operand],
        label: str,
    ) -> None:
        """Appends the launches of one operation, over the same operands and arguments."""
        written = {key for key in map(_key, writes) if key is not None}
        read = {key for key in map(_key, operands) if key is not None} - written
        barrier = bool(read & self._written or written & (self._written | self._read))
        if barrier:
            self._epoch += 1
            self._read.clear()
            self._written.clear()
        self._read |= read
        self._written |= written
        for operand in operands:
            if isinstance(operand, Value):
                if operand.first_epoch < 0:
                    operand.first_epoch = self._epoch
                operand.last_epoch = self._epoch
        for index, launch in enumerate(launches):
            waits = launch.barrier if index else barrier
            self._steps.append(Step(launch, args, operands, waits, label))

    @property
    def labels(self) -> list[str]:
        return [step.label for step in self._steps]

    def place_values(self) -> int:
        """Gives every activation its place; returns the bytes of scratch memory that takes."""
        return max(_place(self._values), ALIGNMENT)

    def build(self, scratch: Buffer) -> Plan:
        """The finished plan, over at least as many bytes as `place_values` says."""
        num_bindings = sum(len(step.operands) for step in self._steps)
        dispatches = np.zeros(len(self._steps), abi.DISPATCH)
        bindings = np.zeros(num_bindings, abi.BINDING)
        args = bytearray()
        first_binding = 0
        for record, step in zip(dispatches, self._steps, strict=True):
            record["pipeline"] = step.launch.pipeline.id
            record["flags"] = abi.BARRIER if step.barrier else 0
            record["grid"] = step.launch.grid
            record["group"] = step.launch.num_threads, 1, 1
            record["grid_buffer"] = abi.NO_ID
            record["first_binding"] = first_binding
            record["num_bindings"] = len(step.operands)
            record["args_offset"] = len(args)
            record["args_bytes"] = len(step.args)
            args += step.args + bytes(-len(step.args) % 16)
            for operand in step.operands:
                buffer = scratch if isinstance(operand, Value) else operand.buffer
                bindings[first_binding]["buffer"] = buffer.id
                bindings[first_binding]["offset_bytes"] = operand.offset_bytes
                first_binding += 1
        return self.device.plan(dispatches, bindings, bytes(args))


def _key(operand: Operand) -> Hashable:
    return operand if isinstance(operand, Value) else operand.key


def _place(values: Sequence[Value]) -> int:
    """Gives every value an offset, largest first, in the lowest gap; returns the bytes needed."""
    placed: list[Value] = []
    end = 0
    for value in sorted(values, key=lambda v: -v.num_bytes):
        rivals = [
            other
            for other in placed
            if other.first_epoch <= value.last_epoch and value.first_epoch <= other.last_epoch
        ]
        offset = 0
        for other in sorted(rivals, key=lambda v: v.offset_bytes):
            if offset + value.num_bytes <= other.offset_bytes:
                break
            offset = max(
                offset, -(-(other.offset_bytes + other.num_bytes) // ALIGNMENT) * ALIGNMENT
            )
        value.offset_bytes = offset
        placed.append(value)
        end = max(end, offset + value.num_bytes)
    return end
