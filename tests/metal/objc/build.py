"""libmtlq with the real shim/metal, over the fake Metal of this folder, for Linux."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..emulator import build as emulator

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COMPILER = "clang-22"

_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-objc-root-class"]
_C = ["-std=gnu11", "-O1", "-g1", "-fPIC", "-pthread", "-D_GNU_SOURCE"]
_SHIM = [*_C, *_WARNINGS, "-fvisibility=hidden", "-DMTLQ_METAL"]
_OBJC = ["-fobjc-runtime=macosx-14.0", "-fblocks", "-fobjc-exceptions", "-fexceptions"]
_OBJC += [f"-I{HERE / 'sdk'}", *_WARNINGS, "-Wno-unused-parameter"]
_OBJC += ["-Wno-objc-literal-conversion"]  # see available() in Foundation.h
_ARC = [*_OBJC, "-fobjc-arc", "-fobjc-arc-exceptions"]

SOURCES = {  # flags of each group of sources
    "shim": (_SHIM, ["shim/*.c", "shim/cpu/*.c", "tests/metal/objc/no_kernels.c"]),
    "metal": ([*_SHIM, *_ARC], ["shim/metal/*.m"]),
    "runtime": ([*_C, "-w", "-fexceptions"], ["tests/metal/objc/runtime/*.c"]),
    "foundation": (
        [*_C, *_OBJC, "-Wno-incomplete-implementation"],
        ["tests/metal/objc/runtime/*.m"],
    ),
    "fake": (
        [*_C, *_ARC, "-Wno-objc-designated-initializers", "-Wno-undef-prefix"],
        ["tests/metal/objc/fake/*.m"],
    ),
}

_ASAN = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared-libasan"]
_TSAN = ["-fsanitize=thread", "-shared-libsan"]
MODES: dict[str, list[str]] = {"plain": [], "asan": _ASAN, "tsan": _TSAN}


def is_missing() -> str | None:
    """Why the shim cannot be built here, or None."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return "the test runtime for Objective-C is for x86-64 Linux"
    for compiler in (COMPILER, emulator.COMPILER):
        if shutil.which(compiler) is None:
            return f"{compiler} is not installed (packages clang-22 and libclang-rt-22-dev)"
    return None


def sanitizer_runtime(mode: str) -> Path:
    """What a process that loads library(mode) has to have loaded first."""
    name = f"libclang_rt.{mode}-{platform.machine()}.so"
    command = [COMPILER, f"-print-file-name={name}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


@functools.cache
def library(mode: str = "plain") -> Path:
    """The shared object: shim, runtime and fake in one, cached by the hash of its sources."""
    jobs = [
        (flags, path)
        for flags, patterns in SOURCES.values()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
    ]
    headers = [*ROOT.glob("shim/**/*.h"), *ROOT.glob("kernels/args.h"), *HERE.glob("**/*.h")]
    inputs: list[Path | str] = [path for _, path in jobs] + sorted(headers)
    inputs += [repr(SOURCES), repr(MODES[mode]), str(ROOT / "tests/metal/emulator/runtime.h")]

    def compile_to(target: Path, directory: Path) -> None:
        def compile_one(job: tuple[int, tuple[list[str], Path]]) -> Path:
            index, (flags, path) = job
            out = directory / f"{index}-{path.stem}.o"
            emulator.run([COMPILER, *flags, *MODES[mode], "-c", path, "-o", out])
            return out

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_one, enumerate(jobs)))
        link = [COMPILER, "-shared", *MODES[mode], *objects, "-lstdc++", "-ldl", "-pthread", "-lm"]
        emulator.run([*link, "-o", target])

    return emulator.cached(f"libmtlq-metal-{mode}.so", inputs, compile_to)
