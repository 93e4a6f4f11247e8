"""Builds libmtlq (shim and kernels, plain C) and the Cython modules with the user's own C compiler.

MTLQ_BUILD chooses release (default), debug (ASan, UBSan, Cython checks), coverage (make coverage)
or annotate (release, with pages in build/annotate/cython that show where Cython calls Python);
MTLQ_WERROR=1 makes warnings of the C compiler errors.
"""

import fcntl
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from Cython.Build import cythonize
from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).parent.resolve()
MODES = ("release", "debug", "coverage", "annotate")
MODE = os.environ.get("MTLQ_BUILD", "release")
if MODE not in MODES:
    raise SystemExit(f"MTLQ_BUILD={MODE}: choose one of {', '.join(MODES)}")

OPTIMISE = {
    # Tracking variables through sanitized vector code takes gcc minutes a file.
    "debug": "-O1 -g1 -fno-var-tracking -fno-omit-frame-pointer -fsanitize=address,undefined "
    "-fno-sanitize-recover=undefined",
    "coverage": "-O1 -g1 --coverage",
}.get(MODE, "-O3").split()
LINK = {"debug": ["-fsanitize=address,undefined"], "coverage": ["--coverage"]}.get(MODE, [])

C_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
C_FLAGS.append("-ffp-contract=off")  # results must not depend on the instruction set
if os.environ.get("MTLQ_WERROR"):  # for developers: no warning may break an installation
    C_FLAGS.append("-Werror")

# The metal device: Objective-C with ARC, macOS 14 or later.
OBJC_FLAGS = ["-fobjc-arc", "-fobjc-arc-exceptions", "-fblocks", "-mmacosx-version-min=14.0"]
FRAMEWORKS = ["-framework", "Metal", "-framework", "Foundation", "-mmacosx-version-min=14.0"]

# kernels/cpu is compiled once for each instruction set of the target.
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "vbmi")]
INSTRUCTION_SETS = {
    "x86_64": {"portable": [], "avx2": AVX2, "avx512": AVX2 + AVX512},
    "arm64": {"portable": [], "neon": ["-march=armv8.2-a+dotprod"]},
}

CHECKED = MODE in ("debug", "coverage")
CYTHON_DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKED,
    "initializedcheck": CHECKED,
    "wraparound": False,
    "cdivision": True,
    "linetrace": MODE == "coverage",
}
CYTHON_MACROS = (
    [("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if MODE == "coverage" else []
)


class Toolchain(NamedTuple):
    """A C compiler and what it compiles for."""

    command: list[str]
    arch: str  # "x86_64", "arm64" or a name without instruction sets of ours
    apple: bool

    @classmethod
    def find(cls) -> "Toolchain":
        configured = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        command = configured if shutil.which(configured[0]) else ["cc"]
        try:
            triple = subprocess.check_output([*command, "-dumpmachine"], text=True).strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"no C compiler: {shlex.join(command)}: {error}; set CC") from error
        arch = triple.split("-")[0]
        arch = {"aarch64": "arm64", "amd64": "x86_64"}.get(arch, arch)
        return cls(command, arch, "apple" in triple)

    @property
    def instruction_sets(self) -> dict[str, list[str]]:
        return INSTRUCTION_SETS.get(self.arch, {"portable": []})


class Step(NamedTuple):
    """One object file: remade when its command line or anything it includes changes."""

    command: list[str]
    object: Path

    @property
    def stamp(self) -> Path:
        return self.object.with_suffix(".command")

    def is_current(self) -> bool:
        try:
            if self.stamp.read_text() != shlex.join(self.command):
                return False
            made = self.object.stat().st_mtime_ns
            rule = self.object.with_suffix(".d").read_text().replace("\\\n", " ")
            includes = shlex.split(rule.split(":", 1)[1])
            return all((ROOT / path).stat().st_mtime_ns <= made for path in includes)
        except OSError:
            return False

    def make(self) -> str:
        """Runs the compiler; returns what it said if it failed, else ""."""
        started = time.time_ns()
        self.object.parent.mkdir(parents=True, exist_ok=True)
        self.stamp.unlink(missing_ok=True)
        result = subprocess.run(self.command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            return f"{shlex.join(self.command)}\n{result.stderr}"
        sys.stderr.write(result.stderr)
        # An edit made while the compiler ran must count as newer than the object.
        os.utime(self.object, ns=(started, started))
        self.stamp.write_text(shlex.join(self.command))
        return ""


class BuildMtlq(Command):
    """build_mtlq: the shared library alone, for this machine or, with CC set, for another."""

    description = "build libmtlq, the shim and its kernels, without Python"
    user_options = [("output=", "o", "file to write"), ("object-dir=", None, "of the objects")]

    def initialize_options(self) -> None:
        self.output = None
        self.object_dir = None

    def finalize_options(self) -> None:
        self.toolchain = Toolchain.find()
        base = ROOT / self.get_finalized_command("build").build_base
        name = "libmtlq.dylib" if self.toolchain.apple else "libmtlq.so"
        folder = base / f"libmtlq-{self.toolchain.arch}"
        self.object_dir = Path(self.object_dir or folder)
        self.output = Path(self.output or folder / name)

    def run(self) -> None:
        steps = self.compile_steps()
        waiting = [step for step in steps if not step.is_current()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            failures = [text for text in pool.map(Step.make, waiting) if text]
        if failures:
            raise CompileError("\n".join(failures))
        objects = [str(step.object) for step in steps]
        # Libraries behind the objects: a linker may drop one that nothing before it needs.
        link = Step([*self.link_command(), *objects, "-pthread", "-lm"], self.output)
        newest = max(step.object.stat().st_mtime_ns for step in steps)
        if waiting or not self.is_linked(link, newest):
            self.link(link)

    def compile_steps(self) -> list[Step]:
        flags = ["-DMTLQ_METAL"] if self.toolchain.apple else []
        sources = sorted([*ROOT.glob("shim/*.c"), *ROOT.glob("shim/cpu/*.c")])
        steps = [self.compile_step(source, flags, "shim") for source in sources]
        if self.toolchain.apple:
            sources = sorted(ROOT.glob("shim/metal/*.m"))
            steps += [self.compile_step(source, OBJC_FLAGS, "shim") for source in sources]
        for isa, flags in self.toolchain.instruction_sets.items():
            flags = [*flags, f"-DMTLQ_ISA={isa}", f"-DMTLQ_ISA_{isa.upper()}"]
            kernels = sorted(ROOT.glob("kernels/cpu/*.c"))
            steps += [self.compile_step(source, flags, isa) for source in kernels]
        return steps

    def compile_step(self, source: Path, flags: list[str], folder: str) -> Step:
        path = str(source.relative_to(ROOT))
        obj = (self.object_dir / folder / path).with_suffix(".o")
        given = shlex.split(os.environ.get("CFLAGS", ""))
        command = [*self.toolchain.command, *given, *C_FLAGS, *OPTIMISE, *flags]
        return Step([*command, "-MMD", "-c", path, "-o", str(obj)], obj)

    def link_command(self) -> list[str]:
        if self.toolchain.apple:
            flags = "-dynamiclib -install_name @rpath/libmtlq.1.dylib -compatibility_version 1 "
            flags += " ".join(FRAMEWORKS)
        else:
            flags = "-shared -Wl,-soname,libmtlq.so.1 -Wl,-z,noexecstack"
        given = shlex.split(os.environ.get("LDFLAGS", ""))
        return [*self.toolchain.command, *given, *flags.split(), *LINK]

    def is_linked(self, link: Step, newest_object: int) -> bool:
        try:
            current = link.stamp.read_text() == shlex.join(link.command)
            return current and link.object.stat().st_mtime_ns >= newest_object
        except OSError:
            return False

    def link(self, link: Step) -> None:
        """Replaces the library in one move: running programs keep the one they loaded."""
        new = self.output.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run([*link.command, "-o", str(new)], cwd=ROOT).returncode:
            raise CompileError(f"{self.output.name} did not link")
        new.replace(self.output)
        link.stamp.write_text(shlex.join(link.command))


class Build(build):
    """Keeps the modes apart: build/release, build/debug, ..."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = f"build/{MODE}"


class BuildExt(build_ext):
    """The Cython modules, and libmtlq beside them in the package."""

    def finalize_options(self) -> None:
        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir=None if MODE == "coverage" else f"build/{MODE}/cython",
            compiler_directives=CYTHON_DIRECTIVES,
            annotate=MODE == "annotate",
            quiet=True,
        )
        super().finalize_options()
        if self.inplace:  # pip install -e would compile in a new folder each time
            self.build_lib = self.build_temp = f"build/{MODE}/inplace"
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        command = self.get_finalized_command("build_mtlq")
        command.run()
        in_place = self.inplace
        super().run()
        places = [Path(self.build_lib)] + ([ROOT] if in_place else [])
        for place in places:
            install(command.output, place / "mtlqwen" / command.output.name)
        install_metal_kernels(Path(self.build_lib) / "mtlqwen" / "metal")

    def get_outputs(self) -> list[str]:
        package = Path(self.build_lib) / "mtlqwen"
        library = package / self.get_finalized_command("build_mtlq").output.name
        kernels = (package / "metal" / path.name for path in ROOT.glob("kernels/metal/*.metal"))
        return [*super().get_outputs(), str(library), *map(str, kernels)]


def install(source: Path, target: Path) -> None:
    """Copies by a rename, so that a program that has target mapped keeps the old one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(".new")
    shutil.copy2(source, new)
    new.replace(target)


def install_metal_kernels(folder: Path) -> None:
    """The text of each Metal library, its headers put in: what a device compiles at run time."""
    spec = importlib.util.spec_from_file_location("source", ROOT / "mtlqwen" / "metal_source.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder.mkdir(parents=True, exist_ok=True)
    for path in ROOT.glob("kernels/metal/*.metal"):
        (folder / path.name).write_text(module.library_source(path), encoding="utf-8")


def cython_modules() -> list[Extension]:
    return [
        Extension(
            f"mtlqwen.{path.stem}",
            [str(path.relative_to(ROOT))],
            define_macros=CYTHON_MACROS,
            extra_compile_args=[*OPTIMISE, "-ffp-contract=off", *([] if CHECKED else ["-g0"])],
            extra_link_args=LINK,
        )
        for path in sorted(ROOT.glob("mtlqwen/_*.pyx"))
    ]


if __name__ == "__main__":
    os.chdir(ROOT)
    Path("build").mkdir(exist_ok=True)
    with open("build/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time in a tree
        setup(
            cmdclass={"build": Build, "build_ext": BuildExt, "build_mtlq": BuildMtlq},
            ext_modules=cython_modules(),
        )
