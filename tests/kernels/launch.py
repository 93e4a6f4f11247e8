"""Runs one kernel on every instruction set of this machine and several numbers of workers.

The project's rule is that all of them give the same bits, so a test asks once, compares one answer
with NumPy, and has the equality checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import numpy as np

from mtlqwen import abi
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError

ROWS, SEQUENCES, LOGIT_ROWS, FEATURE_ROW = 0, 1, 2, 3  # words of the batch header
UNBOUND = -1
INSTRUCTION_SETS = ("portable", "avx2", "avx512", "neon")
THREADS = (1, 2, 3)

ARGS = {  # kernels/args.h
    "rmsnorm": "=IIf",
    "gather": "=II",
    "swiglu": "=II",
    "gated_norm": "=IIIf",
    "argmax": "=III",
    "tap": "=IIII",
    "scatter_ids": "=I",
    "block_conv": "=IIII",
    "select_path_f32": "=III",
    "select_path_f16": "=III",
    "select_path_bf16": "=III",
    "rotary": "=IIIIIIfI",
    "attention": "=IIIIIfQIIII",
    "conv": "=IIIffIQQQQQ",
    "delta": "=IIIIQQQQQII",
    "delta_chunk": "=IIIIQQQQQII",
}


@cache
def devices() -> dict[tuple[str, int], Device]:
    """(instruction set, threads) -> device, for each instruction set that runs here."""
    found = {}
    for isa in INSTRUCTION_SETS:
        try:
            for threads in THREADS:
                found[isa, threads] = Device.open("cpu", num_threads=threads, isa=isa)
        except DeviceError:  # not of this machine
            continue
    return found


def launch(
    device: Device, kernel: str, args: Sequence[float], arrays: Sequence[np.ndarray]
) -> None:
    """One launch; the arrays are its bindings as args.h orders them, and hold the results after."""
    packed = struct.pack(ARGS[kernel], *args)
    with ExitStack() as stack:
        buffers = []
        for array in arrays:
            buffer = device.buffer(max(array.nbytes, 1))
            stack.callback(buffer.free)
            buffer.array(array.dtype, array.shape)[...] = array
            buffers.append(buffer)
        dispatch = np.zeros(1, abi.DISPATCH)
        dispatch["pipeline"] = device.pipeline(kernel).id
        dispatch["grid_buffer"] = abi.NO_ID
        dispatch["num_bindings"] = len(buffers)
        dispatch["args_bytes"] = len(packed)
        bindings = np.zeros(len(buffers), abi.BINDING)
        bindings["buffer"] = [buffer.id for buffer in buffers]
        plan = device.plan(dispatch, bindings, packed)
        stack.callback(plan.free)
        device.wait(device.submit([plan]))
        for array, buffer in zip(arrays, buffers, strict=True):
            array[...] = buffer.array(array.dtype, array.shape)


def run(
    kernel: str, args: Sequence[float], arrays: Sequence[np.ndarray], *, ignore: Sequence[int] = ()
) -> list[np.ndarray]:
    """The arrays after the kernel ran; no two devices may differ in a bit of those not ignored."""
    expected: list[np.ndarray] = []
    for (isa, threads), device in devices().items():
        outputs = [np.array(array, order="C") for array in arrays]
        launch(device, kernel, args, outputs)
        expected = expected or outputs
        for binding, (output, want) in enumerate(zip(outputs, expected, strict=True)):
            if binding in ignore:
                continue
            differ = np.flatnonzero(output.view(np.uint8) != want.view(np.uint8))
            assert differ.size == 0, (
                f"{kernel}: binding {binding} of {isa} with {threads} threads differs from "
                f"{next(iter(devices()))} in {differ.size} bytes, first at byte {differ[0]}"
            )
    return expected


def header(rows: int, sequences: int = 0, logit_rows: int = 0) -> np.ndarray:
    words = np.zeros(16, np.uint32)
    words[:3] = rows, sequences, logit_rows
    return words


@dataclass
class Batch:
    """A packed step: per sequence its rows, the positions cached before, its slot and its bank;
    and with drafts whether it is bound and how many rows it replays.
    """

    lengths: list[int]
    kv_valid: list[int]
    slots: list[int]
    banks: list[int]
    bound: list[bool] | None = None  # which sequences verify a draft; None: none does
    pending: list[int] | None = None  # rows of the tape to replay; None: of none

    @property
    def num_rows(self) -> int:
        return sum(self.lengths)

    @property
    def header(self) -> np.ndarray:
        return header(self.num_rows, len(self.lengths))

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum([0, *self.lengths], dtype=np.int32)

    @property
    def row_sequence(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)

    @property
    def positions(self) -> np.ndarray:
        rows = [np.arange(n) + kv for n, kv in zip(self.lengths, self.kv_valid, strict=True)]
        return np.concatenate(rows).astype(np.int32)

    def per_sequence(self) -> list[np.ndarray]:
        """query_start_loc, sequence_slots, batched_kv_valid, bank."""
        words = (np.array(x, np.int32) for x in (self.slots, self.kv_valid, self.banks))
        return [self.starts, *words]

    def speculation(self) -> list[np.ndarray]:
        """state, pending"""
        bound = self.bound or [False] * len(self.slots)
        state = [slot if b else UNBOUND for slot, b in zip(self.slots, bound, strict=True)]
        pending = self.pending or [0] * len(self.slots)
        return [np.array(state, np.int32), np.array(pending, np.int32)]

    def rows_of(self, sequence: int) -> slice:
        return slice(self.starts[sequence], self.starts[sequence + 1])
