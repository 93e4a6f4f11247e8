"""A small library, and a chain of dispatches over it whose result depends on their order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from mtlqwen import abi
from mtlqwen.device import Buffer, Constants, Device, Plan

THREADS = 16
SOURCE = """
#include <metal_stdlib>
using namespace metal;

constant uint VALUE [[function_constant(0)]];

kernel void start(device uint *x [[buffer(0)]], constant uint &add [[buffer(30)]],
                  uint i [[thread_position_in_grid]])
{
    x[i] = i * 3 + add;
}

kernel void step(device uint *x [[buffer(0)]], constant uint &add [[buffer(30)]],
                 uint i [[thread_position_in_grid]])
{
    x[i] = x[i] * 5 + add;
}

kernel void constant_value(device uint *x [[buffer(0)]], constant uint &add [[buffer(30)]],
                           uint i [[thread_position_in_grid]])
{
    x[i] = VALUE + 0 * add;
}

kernel void copy(device uint *x [[buffer(0)]], device const uint *source [[buffer(1)]],
                 constant uint &add [[buffer(30)]], uint i [[thread_position_in_grid]])
{
    x[i] = source[i] + add;
}

kernel void store(device uint *x [[buffer(0)]], constant uint &add [[buffer(30)]],
                  uint i [[thread_position_in_grid]])
{
    x[i] = i + add;
}

kernel void store_in_page(device const ulong *table [[buffer(0)]],
                          constant uint &add [[buffer(30)]], uint i [[thread_position_in_grid]])
{
    ((device uint *)table[0])[i] = i + add;
}

kernel void copy_from_page(device uint *x [[buffer(0)]], device const ulong *table [[buffer(1)]],
                           constant uint &add [[buffer(30)]], uint i [[thread_position_in_grid]])
{
    x[i] = ((device const uint *)table[0])[i] + add;
}
"""


def dispatches(
    device: Device,
    target: Buffer,
    launches: Sequence[tuple[str, int]],
    *,
    offset_bytes: int = 0,
    num_values: int = 64,
    barriers: bool = True,
    constants: Constants = (),
    source: tuple[Buffer, int] | None = None,
    grid: Buffer | None = None,
) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Records of launches (kernel, argument) over `target`, and over `source` (buffer, offset)."""
    operands = [(target.id, 0, offset_bytes)]
    if source is not None:
        operands.append((source[0].id, 0, source[1]))
    bindings = np.array(operands, abi.BINDING)
    records = np.zeros(len(launches), abi.DISPATCH)
    args = b""
    for index, (kernel, argument) in enumerate(launches):
        threads = min(THREADS, num_values)
        records[index]["pipeline"] = device.pipeline(kernel, SOURCE, constants).id
        records[index]["flags"] = abi.BARRIER if index and barriers else 0
        records[index]["grid"] = num_values // threads, 1, 1
        records[index]["group"] = threads, 1, 1
        records[index]["grid_buffer"] = abi.NO_ID if grid is None else grid.id
        records[index]["num_bindings"] = len(operands)
        records[index]["args_offset"] = len(args)
        records[index]["args_bytes"] = 4
        args += struct.pack("=I12x", argument)
    return records, bindings, args


def store(device: Device, sparse: Buffer, offset_bytes: int, value: int) -> Plan:
    """Writes value, value + 1, ... to 16 words of a sparse buffer, whose pages may be a table."""
    kernel = "store_in_page" if device.info.page_table_reason else "store"
    launches = [(kernel, value)]
    records = dispatches(device, sparse, launches, offset_bytes=offset_bytes, num_values=16)
    return device.plan(*records)


class Chain:
    """x = 3 i + 1, then x = 5 x + s for s = 1 .. steps - 1; or one launch of another kernel."""

    def __init__(
        self,
        device: Device,
        num_values: int,
        *,
        steps: int = 1,
        kernel: str | None = None,
        **options,
    ):
        self.device = device
        self.num_values = num_values
        self.steps = steps
        self.buffer = device.buffer(4 * num_values)
        launches = [("start", 1), *(("step", s) for s in range(1, steps))]
        if kernel is not None:
            launches = [(kernel, 0)]
        self.plan = device.plan(
            *dispatches(device, self.buffer, launches, num_values=num_values, **options)
        )

    def run(self) -> None:
        self.device.wait(self.device.submit((self.plan,)))

    def values(self) -> np.ndarray:
        return self.buffer.array(np.uint32, (self.num_values,)).copy()

    def expected(self) -> np.ndarray:
        x = np.arange(self.num_values, dtype=np.uint32) * 3 + 1
        for s in range(1, self.steps):
            x = x * np.uint32(5) + np.uint32(s)
        return x
