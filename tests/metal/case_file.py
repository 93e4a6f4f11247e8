"""Cases of the kernel table: buffers, launches, and what must come out.

A case is run by a driver program (the emulator's, or the one of the nvcc route) which reads a file
of cases and writes a file of answers; the format is described in emulator/case_file.h. Only NumPy
is needed.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtlqwen.metal_geometry import ARGS_BUFFER, Launch

MAGIC = 0x4353414D
NO_BUFFER = 0xFFFFFFFF
GUARD_ROWS = 2  # rows of capacity beyond the rows of the step: they must not be written

Libraries = Callable[[str, frozenset[str]], Path]  # library name, kernels wanted -> shared object


@dataclass
class Dispatch:
    launch: Launch
    bindings: dict[int, int]  # buffer index of the kernel -> buffer of the case


@dataclass
class Case:
    """`expected`: for each output buffer float64 values; NaN where nothing may be written."""

    name: str
    tolerance: float = 1e-5  # of the norm of the difference over the norm of what is expected
    buffers: list[np.ndarray] = field(default_factory=list)
    expected: dict[int, np.ndarray] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)
    targets: dict[int, int] = field(default_factory=dict)  # of buffers that hold addresses
    seed: int = 0

    def input(self, values: np.ndarray) -> int:
        self.buffers.append(np.ascontiguousarray(values))
        return len(self.buffers) - 1

    def output(
        self, expected: np.ndarray, initial: np.ndarray | None = None, dtype=np.float32
    ) -> int:
        """A buffer to be compared; NaN (for integers -1) at the start unless `initial` is given."""
        if initial is None:
            initial = np.full(
                expected.shape, np.nan if np.issubdtype(dtype, np.floating) else -1, dtype
            )
        index = self.input(initial)
        self.expected[index] = np.asarray(expected)
        return index

    def addresses(self, target: int, offsets: np.ndarray) -> int:
        """A buffer of 64-bit addresses: of bytes of the buffer `target`."""
        index = self.input(offsets.astype(np.uint64))
        self.targets[index] = target
        return index

    def launch(self, launches: Launch | Sequence[Launch], args: bytes, *bindings: int) -> None:
        args_buffer = self.input(np.frombuffer(args, np.uint8))
        for launch in [launches] if isinstance(launches, Launch) else launches:
            bound = dict(enumerate(bindings)) | {ARGS_BUFFER: args_buffer}
            self.dispatches.append(Dispatch(launch, bound))

    @property
    def kernels(self) -> dict[str, set[str]]:
        """Names of kernels by library."""
        wanted: dict[str, set[str]] = {}
        for dispatch in self.dispatches:
            wanted.setdefault(dispatch.launch.library, set()).add(dispatch.launch.kernel)
        return wanted

    def check(self, answers: dict[int, np.ndarray]) -> None:
        """AssertionError with the figures if an output is not what it must be."""
        for index, expected in self.expected.items():
            got = answers[index].astype(np.float64)
            untouched = np.isnan(expected)
            left = np.isnan(got) | (got == -1)
            assert left[untouched].all(), (
                f"{self.name}: wrote {np.sum(~left & untouched)} cells not its own"
            )
            difference = got[~untouched] - expected[~untouched]
            assert np.isfinite(difference).all(), (
                f"{self.name}: {np.sum(~np.isfinite(difference))} of {difference.size} cells "
                "are not finite or not written"
            )
            error = np.linalg.norm(difference) / max(np.linalg.norm(expected[~untouched]), 1e-30)
            assert error <= self.tolerance, (
                f"{self.name}: relative error {error:.2e} > {self.tolerance:.0e}"
            )


class KernelFailure(Exception):
    """The driver or the sanitizer reported an error; the text says which."""


def run_cases(
    cases: Sequence[Case],
    driver: Sequence[str],
    libraries: Libraries,
    environment: dict[str, str] | None = None,
) -> list[dict[int, np.ndarray]]:
    """The output buffers of each case. `driver` is a command. Raises KernelFailure."""
    wanted: dict[str, set[str]] = {}
    for case in cases:
        for library, kernels in case.kernels.items():
            wanted.setdefault(library, set()).update(kernels)
    paths = [libraries(library, frozenset(kernels)) for library, kernels in wanted.items()]
    indices = {library: i for i, library in enumerate(wanted)}
    with tempfile.TemporaryDirectory() as directory:
        case_path, answer_path = Path(directory) / "cases", Path(directory) / "answers"
        case_path.write_bytes(_encode(cases, indices))
        command = [*driver, str(case_path), str(answer_path), *map(str, paths)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, errors="replace"
        )
        if done.returncode:
            raise KernelFailure((done.stderr or done.stdout)[:6000] or f"status {done.returncode}")
        return _decode(cases, answer_path.read_bytes())


def _encode(cases: Sequence[Case], libraries: dict[str, int]) -> bytes:
    parts = [struct.pack("<II", MAGIC, len(cases))]
    for case in cases:
        parts.append(struct.pack("<I", len(case.buffers)))
        for index, buffer in enumerate(case.buffers):
            target = case.targets.get(index, NO_BUFFER)
            parts.append(struct.pack("<IIQ", index in case.expected, target, buffer.nbytes))
            parts.append(buffer.tobytes())
        parts.append(struct.pack("<I", len(case.dispatches)))
        for dispatch in case.dispatches:
            launch = dispatch.launch
            parts.append(struct.pack("<I64s", libraries[launch.library], launch.kernel.encode()))
            parts.append(struct.pack("<6I", *launch.grid, launch.threads, 1, 1))
            for pairs in (launch.constants, list(dispatch.bindings.items())):
                parts.append(struct.pack("<I", len(pairs)))
                parts += [struct.pack("<II", *pair) for pair in pairs]
        parts.append(struct.pack("<I", case.seed))
    return b"".join(parts)


def _decode(cases: Sequence[Case], data: bytes) -> list[dict[int, np.ndarray]]:
    answers, offset = [], 0
    for case in cases:
        failed, length = struct.unpack_from("<II", data, offset)
        offset += 8
        if failed:
            raise KernelFailure(f"{case.name}: {data[offset : offset + length].decode()}")
        answer = {}
        for index in sorted(case.expected):
            buffer = case.buffers[index]
            raw = np.frombuffer(data, buffer.dtype, buffer.size, offset)
            answer[index] = raw.reshape(buffer.shape)
            offset += buffer.nbytes
        answers.append(answer)
    return answers
