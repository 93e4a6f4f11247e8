"""Two ways to roll the gated delta rule back to the accepted rows of a draft: time and memory.

    python bench/rollback.py -t 1 -r 9

The tape keeps k, d and decay of each row and replays the accepted ones; the other layout keeps the
whole state behind each row. A step here is `delta` in all layers of a 0.8B model: it takes up the
accepted half of the last draft and verifies the next one. "plain" runs the same rows with nothing
to take up or to keep.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import click
import numpy as np

from mtlqwen import abi
from mtlqwen.device import Buffer, Device, Plan

NUM_LAYERS, KEY_HEADS, VALUE_HEADS, DIM = 18, 16, 16, 128  # of the delta layers of a 0.8B
STATE = VALUE_HEADS * DIM * DIM  # floats
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
TAPE_ROW = KEY_HEADS * DIM + VALUE_HEADS * (DIM + 1)
UNBOUND = -1
ROW_FLOATS = {"plain": 0, "tape": TAPE_ROW, "states": STATE}
LAYOUTS = {"plain": 0, "tape": 0, "states": 1}


@dataclass(frozen=True)
class Case:
    kind: str
    num_sequences: int
    width: int

    @property
    def tape_bytes(self) -> int:
        """Of both banks."""
        return 8 * self.num_sequences * NUM_LAYERS * self.width * ROW_FLOATS[self.kind]


class Step:
    """`delta` of every layer, as one plan; sequence s is in slot s."""

    def __init__(self, device: Device, case: Case, rng: np.random.Generator):
        self.device, self.case, self._buffers = device, case, list[Buffer]()
        num_rows, slots, half = case.num_sequences * case.width, case.num_sequences, case.width // 2
        words = np.zeros(16, np.uint32)
        words[:2] = num_rows, slots
        is_plain = case.kind == "plain"
        per_sequence = [
            np.arange(slots + 1) * case.width,
            np.arange(slots),
            np.full(slots, 100),
            np.zeros(slots),
        ]
        y = rng.standard_normal((num_rows, CHANNELS)) / DIM**0.5
        gates = [rng.standard_normal((num_rows, VALUE_HEADS)) for _ in range(2)]
        heads = [-np.ones(VALUE_HEADS), np.zeros(VALUE_HEADS)]
        inputs = [self._filled(words)]
        inputs += [self._filled(x.astype(np.int32)) for x in per_sequence]
        inputs += [self._filled(x.astype(np.float32)) for x in (y, *gates, *heads)]
        states = self._empty(2 * slots * NUM_LAYERS * STATE)
        o = self._empty(num_rows * VALUE_HEADS * DIM)
        bound = np.full(slots, UNBOUND) if is_plain else np.arange(slots)
        pending = np.full(slots, 0 if is_plain else half)
        outputs = [self._filled(x.astype(np.int32)) for x in (bound, pending)]
        tape = self._empty(max(case.tape_bytes // 4, 1))
        self._plan = self._build([*inputs, states, o, *outputs, tape])

    def close(self) -> None:
        self._plan.free()
        for buffer in self._buffers:
            buffer.free()

    def milliseconds(self) -> float:
        ticket = self.device.submit([self._plan])
        self.device.wait(ticket)
        return self.device.ticket_time(ticket) / 1e6

    def _empty(self, num_floats: int) -> Buffer:
        buffer = self.device.buffer(4 * num_floats)
        self._buffers.append(buffer)
        return buffer

    def _filled(self, values: np.ndarray) -> Buffer:
        buffer = self._empty(values.size)
        buffer.array(values.dtype, values.shape)[...] = values
        return buffer

    def _build(self, operands: list[Buffer]) -> Plan:
        case = self.case
        row = ROW_FLOATS[case.kind]
        state_slot, tape_slot = NUM_LAYERS * STATE, NUM_LAYERS * case.width * row
        strides = (case.num_sequences * state_slot, state_slot)
        strides += (case.num_sequences * tape_slot, tape_slot, row)
        shape = (KEY_HEADS, VALUE_HEADS, DIM, DIM)
        args = struct.pack("=IIIIQQQQQII", *shape, *strides, LAYOUTS[case.kind], 0)
        dispatches = np.zeros(NUM_LAYERS, abi.DISPATCH)
        dispatches["pipeline"] = self.device.pipeline("delta").id
        dispatches["flags"] = abi.BARRIER
        dispatches["grid_buffer"] = abi.NO_ID
        dispatches["first_binding"] = np.arange(NUM_LAYERS) * len(operands)
        dispatches["num_bindings"] = len(operands)
        dispatches["args_bytes"] = len(args)
        bindings = np.zeros((NUM_LAYERS, len(operands)), abi.BINDING)
        bindings["buffer"] = [buffer.id for buffer in operands]
        layers = np.arange(NUM_LAYERS)
        bindings["offset_bytes"][:, 10] = 4 * STATE * layers  # states
        bindings["offset_bytes"][:, 14] = 4 * case.width * row * layers  # tape
        return self.device.plan(dispatches, bindings.reshape(-1), args)


def measure(device: Device, num_sequences: int, width: int, repeat: int) -> list[str]:
    """One row of the table; the kinds alternate."""
    cases = [Case(kind, num_sequences, width) for kind in ROW_FLOATS]
    steps = [Step(device, case, np.random.default_rng(1)) for case in cases]
    times = [[step.milliseconds() for step in steps] for _ in range(repeat + 1)][1:]
    for step in steps:
        step.close()
    plain, tape, states = np.median(times, axis=0)
    sizes = [f"{case.tape_bytes / 2**20:.0f}" for case in cases[1:]]
    figures = [f"{plain:.1f}", f"{tape:.1f}", f"{states:.1f}", f"{states / tape:.2f}", *sizes]
    return [str(num_sequences), str(width), *figures]


@click.command()
@click.option("-t", "--threads", default=0, help="0: all cores.")
@click.option("-r", "--repeat", default=9)
@click.option("-s", "--sequences", default="1,4,8")
@click.option("-w", "--widths", default="4,8,16")
def main(threads: int, repeat: int, sequences: str, widths: str) -> None:
    columns = "sequences, width, plain ms, tape ms, states ms, states/tape, tape MiB, states MiB"
    print("| " + " | ".join(columns.split(", ")) + " |")
    print("|---" * 8 + "|")
    with Device.open("cpu", num_threads=threads) as device:
        for num_sequences in map(int, sequences.split(",")):
            for width in map(int, widths.split(",")):
                print("| " + " | ".join(measure(device, num_sequences, width, repeat)) + " |")


if __name__ == "__main__":
    main()
