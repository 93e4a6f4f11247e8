"""Matrix products against what the machine gives: `python bench/kernels/linear.py q4_k 3584x1024`.

Weights are random and rotated over more memory than the caches hold. Beside each timing stand a
plain read of the same memory and, on x86, the rate of vpmaddubsw of one core times the threads,
both measured in the same second. Best and median are of all launches.
"""

from __future__ import annotations

import ctypes
import statistics
import struct
import subprocess
import tempfile
from pathlib import Path

import click
import numpy as np

from mtlqwen import abi
from mtlqwen.device import Buffer, Device, Plan
from mtlqwen.gguf import TensorType

FLOAT_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)
RECORD_BYTES = 384  # kernels/cpu/quantize.h


def load_probe() -> ctypes.CDLL:
    source = Path(__file__).with_name("probe.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.check_call(["cc", *flags, str(source), "-o", str(library)])
        probe = ctypes.CDLL(str(library))
    probe.read_bandwidth.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint]
    probe.byte_products.argtypes = [ctypes.c_uint64]
    probe.read_bandwidth.restype = probe.byte_products.restype = ctypes.c_double
    return probe


def one_launch(
    device: Device, kernel: str, args: bytes, operands: list[tuple[Buffer, int]]
) -> Plan:
    dispatch = np.zeros(1, abi.DISPATCH)
    dispatch["pipeline"], dispatch["grid_buffer"] = device.pipeline(kernel).id, abi.NO_ID
    dispatch["num_bindings"], dispatch["args_bytes"] = len(operands), len(args)
    bindings = np.zeros(len(operands), abi.BINDING)
    bindings["buffer"] = [buffer.id for buffer, _ in operands]
    bindings["offset_bytes"] = [offset for _, offset in operands]
    return device.plan(dispatch, bindings, args)


@click.command()
@click.argument("type_name")
@click.argument("shape", default="3584x1024")
@click.option("--rows", default="1,2,4,8,32,128", show_default=True)
@click.option("--threads", default=0, help="0: one per core")
@click.option("--isa", default=None)
@click.option("--megabytes", default=256, show_default=True, help="of weights, rotated over")
@click.option("--repeats", default=5, show_default=True)
def main(
    type_name: str,
    shape: str,
    rows: str,
    threads: int,
    isa: str | None,
    megabytes: int,
    repeats: int,
) -> None:
    type = TensorType[type_name.upper()]
    out_dim, in_dim = map(int, shape.split("x"))
    row_bytes = type.row_bytes(in_dim)
    matrix_bytes = -(-out_dim * row_bytes // 256) * 256
    num_copies = max(1, (megabytes << 20) // matrix_bytes)
    probe = load_probe()
    with Device.open("cpu", num_threads=threads, isa=isa) as device:
        threads = device.info.num_threads
        weights = device.buffer(num_copies * matrix_bytes)
        memory = weights.array(np.uint8, (num_copies * matrix_bytes,))
        memory[...] = np.resize(np.arange(251, dtype=np.uint8), memory.size)
        for num_rows in map(int, rows.split(",")):
            header, x = device.buffer(64), device.buffer(num_rows * in_dim * 4)
            header.array(np.uint32, (16,))[0] = num_rows
            x.array(np.float32, (num_rows, in_dim))[...] = np.sin(np.arange(in_dim))
            records = device.buffer(-(-in_dim // 256) * num_rows * RECORD_BYTES)
            y = device.buffer(num_rows * out_dim * 4)
            quantize = [(header, 0), (x, 0), (records, 0)]
            plan = one_launch(device, "quantize", struct.pack("=II", in_dim, 0), quantize)
            device.wait(device.submit([plan]))
            source = x if type in FLOAT_TYPES else records
            args = struct.pack("=IIIIQ", in_dim, out_dim, 0, 0, row_bytes)
            plans = [
                one_launch(
                    device,
                    f"linear_{type_name.lower()}",
                    args,
                    [(header, 0), (weights, copy * matrix_bytes), (source, 0), (y, 0)],
                )
                for copy in range(num_copies)
            ]
            nanoseconds, bandwidths, products = [], [], []
            launches = max(3, min(num_copies, int(1e10 / (2 * out_dim * in_dim * num_rows))))
            for _ in range(repeats):
                bandwidths.append(probe.read_bandwidth(memory.ctypes.data, memory.size, threads))
                products.append(probe.byte_products(1_000_000) * threads)
                for plan in plans[:launches]:
                    ticket = device.submit([plan])
                    device.wait(ticket)
                    nanoseconds.append(device.ticket_time(ticket))
            best, median = min(nanoseconds), statistics.median(nanoseconds)
            operations = 2 * out_dim * in_dim * num_rows
            print(
                f"{type.name} {shape} rows {num_rows:3}: {best / 1e3:8.1f} us"
                f" (median {median / 1e3:8.1f}), {out_dim * row_bytes / best:5.1f} GB/s"
                f" (reads {max(bandwidths) / 1e9:5.1f}), {operations / best:6.1f} GOP/s"
                f" (vpmaddubsw {2 * max(products) / 1e9:6.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
