"""Bytes a second of the matrix-vector kernels, as a share of what the card's own copy reaches."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np

from mtlqwen.metal_geometry import ARGS_BUFFER, MAX_VECTOR_ROWS, TYPES, WIDE_TYPES, Launch

from ..blocks import random_rows
from ..cases_rows import header, normal, rng_of

TILE_ROWS = 1024  # of W: made once, repeated in the device's memory
ROTATED_BYTES = 600 << 20  # of weights in a replay, to keep them out of the cache
COPY_BYTES = 4 << 30
HEAD = (248320, 4096)
SHAPES = (HEAD, (12288, 4096), (4096, 12288))


class MetalLaunch(ctypes.Structure):
    """metal_launch of runtime.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("groups", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("buffers", ctypes.c_void_p * 31),
        ("seed", ctypes.c_uint64),
    )


class Library:
    """A translated library and the memory that its kernels use."""

    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))
        self.library.metal_allocate.restype = ctypes.c_void_p
        self.library.metal_allocate.argtypes = [ctypes.c_uint64]
        self.library.metal_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        self.library.metal_free.argtypes = [ctypes.c_void_p]
        self.library.metal_error.restype = ctypes.c_char_p
        self.memory: list[int] = []

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.library.metal_error().decode())

    def allocate(self, num_bytes: int) -> int:
        memory = self.library.metal_allocate(num_bytes)
        if not memory:
            raise MemoryError(f"{num_bytes} bytes: {self.library.metal_error().decode()}")
        self.memory.append(memory)
        return memory

    def put(self, values: np.ndarray) -> int:
        memory = self.allocate(values.nbytes)
        self.library.metal_copy(memory, values.ctypes.data, values.nbytes)
        return memory

    def free_all(self) -> None:
        for memory in self.memory:
            self.library.metal_free(memory)
        self.memory.clear()

    def launch(self, launch: Launch, buffers: dict[int, int]) -> MetalLaunch:
        entry = ctypes.cast(getattr(self.library, f"metal_entry_{launch.kernel}"), ctypes.c_void_p)
        record = MetalLaunch(entry=entry.value)
        record.groups[:] = launch.grid
        record.threads[:] = (launch.threads, 1, 1)
        for index, memory in buffers.items():
            record.buffers[index] = memory
        return record

    def milliseconds(self, launches: list[MetalLaunch], repetitions: int = 20) -> float:
        """Median time of one launch."""
        elapsed = ctypes.c_float()
        array = (MetalLaunch * len(launches))(*launches)
        self.check(
            self.library.metal_time(array, len(launches), repetitions, ctypes.byref(elapsed))
        )
        return elapsed.value / len(launches)


def copy_bytes_per_second(library: Library) -> float:
    """Read and written, of a copy within the device."""
    target, source = library.allocate(COPY_BYTES), library.allocate(COPY_BYTES)
    elapsed = ctypes.c_float()
    arguments = (ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_uint64(COPY_BYTES))
    library.check(library.library.metal_time_copy(*arguments, 9, ctypes.byref(elapsed)))
    library.free_all()
    return 2e3 * COPY_BYTES / elapsed.value


def variants(weight_type: str, out_dim: int) -> list[tuple[Launch, int]]:
    """Launches to time and their rows of x."""

    def launch(suffix: str, rows_of_w: int) -> Launch:
        grid = (-(-out_dim // (2 * rows_of_w)), 1, 1)
        return Launch("linear_mv", f"linear_{weight_type}_{suffix}", grid, 64)

    result = [(launch(f"mv{rows}", 2), rows) for rows in range(1, MAX_VECTOR_ROWS + 1)]
    return [*result, (launch("mv1_wide", 4), 1)] if weight_type in WIDE_TYPES else result


def time_shape(library: Library, weight_type: str, out_dim: int, in_dim: int, copy: float) -> int:
    """Prints a line for each variant; returns the number of wrong results."""
    rng = rng_of(weight_type)
    tile_rows = min(TILE_ROWS, out_dim)
    tile, values = random_rows(weight_type, tile_rows, in_dim, rng)
    row_bytes = tile.shape[1]
    x = normal(rng, 4, in_dim)
    expected = x.astype(float) @ values.T
    num_sets = max(2, -(-ROTATED_BYTES // (out_dim * row_bytes)))
    weights = [library.allocate(out_dim * row_bytes) for _ in range(num_sets)]
    on_device = library.put(tile)
    for memory in weights:
        for row in range(0, out_dim, tile_rows):
            num_bytes = min(tile_rows, out_dim - row) * row_bytes
            library.library.metal_copy(memory + row * row_bytes, on_device, num_bytes)
    args = struct.pack("=IIIIQ", in_dim, out_dim, 0, 0, row_bytes)
    shared = {ARGS_BUFFER: library.put(np.frombuffer(args, np.uint8)), 2: library.put(x)}
    y = np.full((4, out_dim), np.nan, np.float32)
    num_wrong = 0
    for launch, rows in variants(weight_type, out_dim):
        y[:] = np.nan
        output = library.put(y)
        buffers = shared | {0: library.put(header(rows)), 3: output}
        launches = [library.launch(launch, buffers | {1: memory}) for memory in weights]
        elapsed = library.milliseconds(launches)
        library.library.metal_copy(y.ctypes.data, output, y.nbytes)
        wanted = np.tile(expected[:rows], -(-out_dim // tile_rows))[:, :out_dim]
        error = np.linalg.norm(y[:rows] - wanted) / np.linalg.norm(wanted)
        rate = (out_dim * row_bytes + 4 * rows * (in_dim + out_dim)) / elapsed * 1e3
        num_wrong += not error < 1e-5
        print(
            f"{weight_type:7} {out_dim}x{in_dim} {launch.kernel:24} "
            f"{elapsed * 1e3:8.1f} us {rate / 1e9:6.0f} GB/s {rate / copy:6.1%} error {error:.1e}",
            flush=True,
        )
    library.free_all()
    return num_wrong


def print_bandwidth(directory: Path) -> int:
    """The table; returns the number of wrong results."""
    libraries = {name: Library(directory / f"linear_mv_{name}.so") for name in TYPES}
    copy = copy_bytes_per_second(libraries["f32"])
    print(f"copy within the device, read and written: {copy / 1e9:.0f} GB/s", flush=True)
    num_wrong = 0
    for weight_type in TYPES:
        for out_dim, in_dim in SHAPES:
            num_wrong += time_shape(libraries[weight_type], weight_type, out_dim, in_dim, copy)
    return num_wrong
