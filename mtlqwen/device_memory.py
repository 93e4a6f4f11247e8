"""What the owner of a network has on a device: buffers, arrays in them, tables, plans."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .device import Buffer, Device, Plan
from .metal_kernels import row_classes
from .plan import Memory, PlanBuilder


class DeviceMemory:
    """Buffers that are freed together."""

    def __init__(self, device: Device):
        self.device = device
        self._buffers: list[Buffer] = []

    @property
    def num_bytes(self) -> int:
        """Address space included that nothing has touched."""
        return sum(buffer.num_bytes for buffer in self._buffers)

    def free(self) -> None:
        for buffer in self._buffers:
            buffer.free()
        self._buffers.clear()

    def adopt(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer

    def buffer(self, num_bytes: int) -> Buffer:
        return self.adopt(self.device.buffer(max(num_bytes, 4)))

    def arrays(
        self, lengths: dict[str, int]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Memory]]:
        """Words in one buffer, each array on a cache line of its own, as views and as operands.

        `header` is unsigned, the others are int32.
        """
        offsets = np.cumsum([0, *(-(-4 * n // 64) * 64 for n in lengths.values())])
        buffer = self.buffer(int(offsets[-1]))
        arrays, operands = {}, {}
        for (name, length), offset in zip(lengths.items(), map(int, offsets), strict=False):
            dtype = np.uint32 if name == "header" else np.int32
            arrays[name] = buffer.array(dtype, (length,), offset)
            operands[name] = Memory(buffer, offset)
        return arrays, operands

    def rope(self, theta: float, dim: int, max_context: int) -> Memory:
        """cos and sin of position * theta^(-2j / dim), f32 [max_context, dim], rounded once from
        double.
        """
        half = dim // 2
        buffer = self.buffer(4 * max_context * dim)
        table = buffer.array(np.float32, (max_context, dim))
        frequency = theta ** (-2.0 * np.arange(half) / dim)
        for start in range(0, max_context, 4096):  # bounds the temporaries
            rows = table[start : start + 4096]
            angle = np.arange(start, start + len(rows))[:, None] * frequency
            rows[:, :half] = np.cos(angle)
            rows[:, half:] = np.sin(angle)
        return Memory(buffer)


class RowPlans:
    """One pass as a plan for each number of rows that the device has faster kernels for.

    A step runs at most one of them, so they share their scratch memory.
    records: ways to run it; each puts it, over at most so many rows, into a builder.
    """

    def __init__(
        self, memory: DeviceMemory, max_rows: int, *records: Callable[[PlanBuilder, int], None]
    ):
        self._classes = row_classes(memory.device, max_rows)  # most rows, ascending
        builders = []
        for record in records:
            for rows in self._classes:
                builders.append(PlanBuilder(memory.device))
                record(builders[-1], rows)
        scratch = memory.buffer(max(builder.place_values() for builder in builders))
        self._plans = [builder.build(scratch) for builder in builders]  # [way][class]

    def of(self, num_rows: int, way: int = 0) -> Plan:
        """way: index of a record."""
        return self._plans[way * len(self._classes) + bisect_left(self._classes, num_rows)]

    def free(self) -> None:
        for plan in self._plans:
            plan.free()
