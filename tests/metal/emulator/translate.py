"""Metal source to C++ (clang) or CUDA (nvcc), leaving to the compiler what C++ can say.

Rewritten are the parts of the language that are not C++: attributes of kernel parameters, function
constants, host_name instances, threadgroup variables and address spaces. The input is the
preprocessed text of a library (see `library_source`), so macros are gone and line markers lead to
the .metal files.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from mtlqwen.metal_source import library_source

PARAMETERS = {
    "thread_position_in_grid": "ThreadPositionInGrid",
    "thread_position_in_threadgroup": "ThreadPositionInGroup",
    "threadgroup_position_in_grid": "GroupPosition",
    "threads_per_grid": "ThreadsPerGrid",
    "threads_per_threadgroup": "ThreadsPerGroup",
    "threadgroups_per_grid": "GroupsPerGrid",
    "thread_index_in_threadgroup": "IndexInGroup",
    "thread_index_in_simdgroup": "Lane",
    "simdgroup_index_in_threadgroup": "SimdgroupIndex",
    "simdgroups_per_threadgroup": "NumSimdgroups",
}
KEYWORDS = {
    "device": "M_DEVICE",
    "constant": "M_CONSTANT",
    "threadgroup": "M_THREADGROUP",
    "thread": "M_THREAD",
    "inline": "M_INLINE",
}
_ATTRIBUTE = re.compile(r"\[\[\s*(\w+)\s*(?:\(\s*([^)]*?)\s*\))?\s*\]\]")
_INSTANCE = re.compile(
    r"template\s*\[\[\s*host_name\(((?:\s*\"\w*\")+)\s*\)\s*\]\]\s*kernel\s+decltype\("
)
_FUNCTION_CONSTANT = re.compile(
    r"constant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\(\s*(\d+)\s*\)\s*\]\]\s*;"
)
_THREADGROUP_VARIABLE = re.compile(
    r"(?<=[;{}\n])(\s*)threadgroup\s+([\w:]+)\s+(\w+)\s*((?:\[[^\]]*\])*)\s*;"
)


class TranslationError(Exception):
    """The text breaks a rule of the house or of the language; the message names the kernel."""


@dataclass
class Library:
    """A translated .metal file."""

    text: str
    kernels: list[str]  # names that the host can look up
    function_constants: dict[str, tuple[int, str]] = field(default_factory=dict)  # index, type


def preprocess(path: Path, compiler: str, defines: tuple[str, ...] = ()) -> str:
    """The library at `path` without macros and comments, with line markers."""
    source = re.sub(r"(?m)^#include <metal_\w+>", "", library_source(path))
    command = [compiler, "-E", "-x", "c++", "-D__METAL_VERSION__=310"]
    command += [f"-D{define}" for define in defines]
    done = subprocess.run([*command, "-"], input=source, capture_output=True, text=True)
    if done.returncode:
        raise TranslationError(f"{path.name}: {done.stderr}")
    return done.stdout


def translate(source: str, header: str, only: frozenset[str] | None = None) -> Library:
    """`source` as C++ that includes `header`. `only`: instances wanted, all if None."""
    library = Library("", [])

    def function_constant(match: re.Match[str]) -> str:
        kind, name, index = match.groups()
        library.function_constants[name] = (int(index), kind)
        return f"M_FUNCTION_CONSTANT({kind}, {name}, {index})"

    source = _FUNCTION_CONSTANT.sub(function_constant, source)
    source, instances = _take_instances(source)
    source, kernels = _take_parameters(source)
    source = _THREADGROUP_VARIABLE.sub(r"\1M_THREADGROUP_VARIABLE(\2, \3, \4)", source)
    for keyword, macro in KEYWORDS.items():
        source = re.sub(rf"\b{keyword}\b(?=[^;\n]*)", macro, source)
    source = re.sub(r"(?m)^M_CONSTANT\b(?=[^;({]*=)", "M_TABLE", source)

    entries = []
    for name, (bindings, is_template) in kernels.items():
        for host_name, function in (
            [(h, f) for h, f in instances if f.partition("<")[0].strip() == name]
            if is_template
            else [(name, name)]
        ):
            if only is None or host_name in only:
                entries.append(f"M_ENTRY({host_name}, ({function}), {', '.join(bindings)})")
                library.kernels.append(host_name)
    library.text = f'#include "{header}"\n{source}\n' + "\n".join(entries) + "\n"
    return library


def _take_instances(source: str) -> tuple[str, list[tuple[str, str]]]:
    """Removes explicit instances; (host name, template-id) of each."""
    instances, kept, position = [], [], 0
    for match in _INSTANCE.finditer(source):
        name = "".join(re.findall(r'"(\w*)"', match[1]))
        close = _matching(source, match.end() - 1)
        instances.append((name, source[match.end() : close].strip()))
        end = source.index(";", close) + 1
        kept += [source[position : match.start()], "\n" * source.count("\n", match.start(), end)]
        position = end
    return "".join(kept) + source[position:], instances


def _take_parameters(source: str) -> tuple[str, dict[str, tuple[list[str], bool]]]:
    """Takes attributes off kernel parameters; for each kernel where its parameters come from."""
    kernels: dict[str, tuple[list[str], bool]] = {}
    kept, position = [], 0
    for match in re.finditer(r"\bkernel\s+void\s+(\w+)\s*\(", source):
        name, close = match[1], _matching(source, match.end() - 1)
        bindings = []
        for parameter in source[match.end() : close].split(","):
            attribute = _ATTRIBUTE.search(parameter)
            if attribute is None:
                raise TranslationError(f"{name}: no attribute on `{' '.join(parameter.split())}`")
            kind, value = attribute.groups()
            if kind == "buffer":
                bindings.append(f"metal_emulator::Buffer<{value}>")
            elif kind in PARAMETERS:
                bindings.append(f"metal_emulator::{PARAMETERS[kind]}")
            else:
                raise TranslationError(f"{name}: attribute {kind} is not supported")
        if name in kernels:
            raise TranslationError(f"{name} is defined twice")
        is_template = bool(re.search(r"template\s*<[^;{}]*>\s*$", source[: match.start()]))
        kernels[name] = (bindings, is_template)
        parameters = _ATTRIBUTE.sub("", source[match.end() : close])
        kept += [source[position : match.start()], f"M_KERNEL void {name}({parameters})"]
        position = close + 1
    return "".join(kept) + source[position:], kernels


def _matching(source: str, opening: int) -> int:
    """Index of the parenthesis that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(source)):
        depth += {"(": 1, ")": -1}.get(source[i], 0)
        if depth == 0:
            return i
    raise TranslationError("unbalanced parenthesis")
