"""What the shim costs: an empty submission, and a sparse tile's map, first touch and unmap.

python bench/shim.py
"""

import statistics
import struct
import time
from collections.abc import Callable

import numpy as np

from mtlqwen import abi
from mtlqwen.device import Device, Plan

NUM_DISPATCHES = 300
TILE_BYTES = 256 << 10
NUM_TILES = 512


def empty_plan(device: Device, barriers: bool) -> Plan:
    """Dispatches of zero rows."""
    buffer = device.buffer(4096)
    dispatches = np.zeros(NUM_DISPATCHES, abi.DISPATCH)
    dispatches["pipeline"] = device.pipeline("gather").id
    dispatches["flags"] = abi.BARRIER if barriers else 0
    dispatches["grid_buffer"] = abi.NO_ID
    dispatches["num_bindings"] = 4
    dispatches["args_bytes"] = 8
    bindings = np.zeros(4, abi.BINDING)
    bindings["buffer"] = buffer.id
    return device.plan(dispatches, bindings, struct.pack("II", 16, 0))


def microseconds(action: Callable[[], object], repeat: int) -> list[float]:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def report(name: str, times: list[float], per: int = 1) -> None:
    best, median = min(times) / per, statistics.median(times) / per
    print(f"{name:52} best {best:9.2f} us   median {median:9.2f} us")


def bench_submit(num_threads: int) -> None:
    with Device.open(num_threads=num_threads) as device:
        for barriers in (True, False):
            plan = empty_plan(device, barriers)
            times = microseconds(lambda plan=plan: device.submit([plan]), 500)
            kind = "with" if barriers else "without"
            report(
                f"{NUM_DISPATCHES} empty dispatches {kind} barriers, {num_threads} threads", times
            )
        plan = empty_plan(device, False)

        def submit_after_pause() -> float:
            time.sleep(0.01)
            start = time.perf_counter()
            device.submit([plan])
            return (time.perf_counter() - start) * 1e6

        report(
            f"the same after an idle 10 ms, {num_threads} threads",
            [submit_after_pause() for _ in range(100)],
        )


def bench_sparse() -> None:
    with Device.open(num_threads=1) as device:
        heap = device.heap(NUM_TILES * TILE_BYTES, TILE_BYTES)
        sparse = device.sparse(NUM_TILES * TILE_BYTES, TILE_BYTES)
        order = np.random.default_rng(0).permutation(NUM_TILES)
        ops = np.zeros(NUM_TILES, abi.MAP_OP)
        ops["buffer"], ops["heap"], ops["num_pages"] = sparse.id, heap.id, 1
        ops["page"], ops["heap_page"] = np.arange(NUM_TILES), order
        unmap = ops.copy()
        unmap["kind"], unmap["heap"], unmap["heap_page"] = abi.UNMAP, abi.NO_ID, 0
        memory = sparse.array(np.uint8, (NUM_TILES, TILE_BYTES))

        def touch() -> None:
            memory[:, ::4096] = 1

        report("map a 256 KiB tile", microseconds(lambda: device.map(ops), 1), NUM_TILES)
        report("first touch of fresh pages", microseconds(touch, 1), NUM_TILES)
        singles = [unmap[i : i + 1] for i in order]
        times = [microseconds(lambda op=op: device.map(op), 1)[0] for op in singles]
        report("unmap a touched tile, one a call", times)
        device.map(ops)
        report("touch of pages that the heap has", microseconds(touch, 1), NUM_TILES)
        report(
            "unmap a touched tile, all in one call",
            microseconds(lambda: device.map(unmap), 1),
            NUM_TILES,
        )


if __name__ == "__main__":
    for num_threads in (1, 2):
        bench_submit(num_threads)
    bench_sparse()
