"""Compiles the .metal files for an NVIDIA GPU: nvcc (12 or newer) and g++, no GPU, no network."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mtlqwen import metal_geometry as geometry

from ..emulator.translate import preprocess, translate

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "kernels" / "metal"
# 177, 114: unused helpers of a header. 2361: narrowing that Metal allows.
NVCC = ["nvcc", "-arch=sm_90", "-std=c++20", "-O3", "-lineinfo", "-diag-suppress=177,114,2361"]


def library_name(library: str, kernel: str) -> str:
    """Linear kernels make a shared object for each tensor type, to be compiled side by side."""
    for weight_type in sorted(geometry.TYPES, key=len, reverse=True):
        if kernel.startswith(f"linear_{weight_type}_"):
            return f"{library}_{weight_type}"
    return library


def build_all(target: Path) -> None:
    """Every library, and the driver, in `target`. Raises CalledProcessError."""
    target.mkdir(parents=True, exist_ok=True)
    launch = target / "launch.o"
    _run([*NVCC, "-c", "-Xcompiler", "-fPIC", HERE / "launch.cu", "-o", launch])
    jobs = []
    for path in sorted(KERNELS.glob("*.metal")):
        source = preprocess(path, "g++")
        groups: dict[str, set[str]] = {}
        for kernel in translate(source, "metal_cuda.h").kernels:
            groups.setdefault(library_name(path.stem, kernel), set()).add(kernel)
        for name, kernels in groups.items():
            text = translate(source, "metal_cuda.h", frozenset(kernels)).text
            (target / f"{name}.cu").write_text(text)
            jobs.append([*NVCC, f"-I{HERE}", "-shared", "-Xcompiler", "-fPIC"])
            jobs[-1] += [target / f"{name}.cu", launch, "-o", target / f"{name}.so"]
    driver = HERE.parent / "emulator" / "driver.cpp"
    jobs.append(["g++", "-std=c++20", "-O1", driver, "-ldl", "-o", target / "driver"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, jobs))


def _run(command: list) -> None:
    subprocess.run([str(part) for part in command], check=True)
