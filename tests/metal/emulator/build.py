"""Compiles .metal files for the emulator, cached by the hash of everything that goes in."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .translate import preprocess, translate

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "kernels" / "metal"
COMPILER = "clang++-22"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mtlqwen-metal-emulator"

_SYMBOLIZER = "external_symbolizer_path=/usr/bin/addr2line"
ENVIRONMENT = {  # of the driver
    "plain": {},
    "tsan": {"TSAN_OPTIONS": f"ignore_interceptors_accesses=1:halt_on_error=1:{_SYMBOLIZER}"},
    "asan": {"ASAN_OPTIONS": _SYMBOLIZER, "UBSAN_OPTIONS": f"print_stacktrace=1:{_SYMBOLIZER}"},
}

_COMMON = ["-std=c++20", "-g1", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off"]
_COMMON += ["-fvisibility=hidden", "-Wall", "-Wno-unused", "-Wno-unknown-pragmas"]
_KERNEL_FLAGS = ["-march=native", "-Xclang", "-ffloat16-excess-precision=none"]

# mode: flags of kernels, flags of the runtime (never instrumented for TSan), flags of the link
MODES = {
    "plain": (["-O2"], ["-O2", "-DMETAL_STACK_BYTES=65536"], []),
    "tsan": (
        ["-O1", "-fsanitize=thread"],
        ["-O1", "-DMETAL_TSAN", "-DMETAL_STACK_BYTES=131072"],
        ["-fsanitize=thread"],
    ),
    "asan": (
        ["-O1", "-fsanitize=address,alignment", "-fno-sanitize-recover=all"],
        ["-O1", "-DMETAL_ASAN", "-DMETAL_STACK_BYTES=262144"],
        ["-fsanitize=address,alignment"],
    ),
}


def compiler_is_missing() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed (packages clang-22 and libclang-rt-22-dev)"
    return None


@functools.cache
def library(path: Path, mode: str, only: frozenset[str] | None = None) -> Path:
    """The shared object of a .metal file: metal_entry_<kernel>, metal_constant_<index>, the
    runtime.
    """
    text = translate(preprocess(path, COMPILER, ("UNROLL=",)), "metal_cpu.h", only).text
    kernel_flags, _, link_flags = MODES[mode]
    runtime = _runtime_object(mode)

    def compile_to(target: Path, directory: Path) -> None:
        source = directory / f"{path.stem}.cpp"
        source.write_text(text)
        flags = [*_COMMON, *_KERNEL_FLAGS, *kernel_flags, f"-I{HERE}"]
        run([COMPILER, *flags, *link_flags, "-shared", source, runtime, "-o", target])

    headers = [HERE / name for name in ("runtime.h", "metal_cpu.h", "metal_cpu_simd.h")]
    return cached(
        f"{path.stem}-{mode}.so", [text, str(runtime), _flags(mode), *headers], compile_to
    )


@functools.cache
def driver(mode: str) -> Path:
    """The program that runs the cases of a file (see case_file.py) with a library."""
    source = HERE / "driver.cpp"
    link_flags = MODES[mode][2]

    def compile_to(target: Path, directory: Path) -> None:
        flags = [flag for flag in _COMMON if flag != "-fPIC"]
        run([COMPILER, *flags, "-O1", *link_flags, source, "-ldl", "-rdynamic", "-o", target])

    inputs = [source, HERE / "runtime.h", HERE / "case_file.h", _flags(mode)]
    return cached(f"driver-{mode}", inputs, compile_to)


@functools.cache
def _runtime_object(mode: str) -> Path:
    source = HERE / "runtime.cpp"
    flags = MODES[mode][1]

    def compile_to(target: Path, directory: Path) -> None:
        run([COMPILER, *_COMMON, *flags, "-c", source, "-o", target])

    return cached(f"runtime-{mode}.o", [source, HERE / "runtime.h", _flags(mode)], compile_to)


def _flags(mode: str) -> str:
    return repr((_COMMON, _KERNEL_FLAGS, MODES[mode]))


def cached(name: str, inputs: list, compile_to) -> Path:
    digest = hashlib.sha256()
    for item in inputs:
        digest.update(item.read_bytes() if isinstance(item, Path) else item.encode())
    target = CACHE / digest.hexdigest()[:24] / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as directory:
            built = Path(directory) / name
            compile_to(built, Path(directory))
            partial = target.with_suffix(f".{os.getpid()}")
            shutil.copy(built, partial)
            partial.rename(target)
    return target


def run(command: list) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-6000:]}")
