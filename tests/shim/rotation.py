"""Plans for tests, one line a dispatch."""

import struct
from collections.abc import Sequence

import numpy as np

from mtlqwen import abi
from mtlqwen.device import Buffer, Device, Plan


def make_plan(
    device: Device, launches: Sequence[tuple[str, bytes, Sequence[Buffer], bool]]
) -> Plan:
    """launches: kernel, argument struct, operands, whether to wait for the launches before."""
    dispatches = np.zeros(len(launches), abi.DISPATCH)
    bindings = np.zeros(sum(len(launch[2]) for launch in launches), abi.BINDING)
    args = bytearray()
    first = 0
    for record, (kernel, kernel_args, operands, barrier) in zip(dispatches, launches, strict=True):
        record["pipeline"] = device.pipeline(kernel).id
        record["flags"] = abi.BARRIER if barrier else 0
        record["grid_buffer"] = abi.NO_ID
        record["first_binding"], record["num_bindings"] = first, len(operands)
        record["args_offset"], record["args_bytes"] = len(args), len(kernel_args)
        args += kernel_args + bytes(-len(kernel_args) % 16)
        for operand in operands:
            bindings[first]["buffer"] = operand.id
            first += 1
    return device.plan(dispatches, bindings, bytes(args))


def header(device: Device, num_rows: int) -> Buffer:
    buffer = device.buffer(64)
    buffer.array(np.uint32, (3,))[:] = num_rows, 1, num_rows
    return buffer


class Rotation:
    """y[i] = x[(i + 1) % rows]: gathers whose repetition shows a dispatch that ran too early."""

    def __init__(self, device: Device, num_rows: int, dim: int):
        self.header = header(device, num_rows)
        self.indices = device.buffer(4 * num_rows)
        self.indices.array(np.int32, (num_rows,))[:] = np.roll(np.arange(num_rows), -1)
        self.x = device.buffer(4 * num_rows * dim)
        self.y = device.buffer(4 * num_rows * dim)
        self.values = self.x.array(np.float32, (num_rows, dim))
        self.values[:] = np.arange(num_rows)[:, None]
        self.args = struct.pack("=II", dim, 0)

    def plan(self, device: Device, num_steps: int) -> Plan:
        """An even number of steps, from x to y and back."""
        launches = [
            ("gather", self.args, (self.header, self.indices, *pair), True)
            for pair in [(self.x, self.y), (self.y, self.x)] * (num_steps // 2)
        ]
        return make_plan(device, launches)
