"""mtlq.h is C11 and C++11, and says the same as abi.py and as the library exports."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mtlqwen import abi

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "shim" / "mtlq.h"
EXPORTS = (ROOT / "shim" / "exports.txt").read_text().split()
STRUCTS = {
    "mtlq_device_desc": abi.DeviceDesc,
    "mtlq_device_info": abi.DeviceInfo,
    "mtlq_plan_desc": abi.PlanDesc,
    "mtlq_constant": abi.Constant,
    "mtlq_dispatch": abi.DISPATCH,
    "mtlq_binding": abi.BINDING,
    "mtlq_map_op": abi.MAP_OP,
}
MACROS = re.findall(r"^#define (MTLQ_\w+) +[^\s_]", HEADER.read_text(), re.MULTILINE)


def offsets(struct: type[ctypes.Structure] | np.dtype) -> list[tuple[str, int]]:
    if isinstance(struct, np.dtype):
        return [(name, struct.fields[name][1]) for name in struct.names]
    return [(name, getattr(struct, name).offset) for name, *_ in struct._fields_]


def size(struct: type[ctypes.Structure] | np.dtype) -> int:
    return struct.itemsize if isinstance(struct, np.dtype) else ctypes.sizeof(struct)


def compiler(*names: str) -> str:
    found = next((name for name in names if shutil.which(name)), None)
    if not found:
        pytest.skip(f"needs one of {', '.join(names)}")
    return found


def probe_source() -> str:
    """A program that prints every size, offset and constant of the header."""
    lines = ['#include "mtlq.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %d\\n", (int)sizeof({name}));')
        for field, _ in offsets(struct):
            lines.append(f'printf("{name}.{field} %d\\n", (int)offsetof({name}, {field}));')
    for macro in MACROS:
        lines.append(f'printf("{macro} %llu\\n", (unsigned long long){macro});')
    return "\n".join([*lines, "return 0; }"])


@pytest.mark.parametrize(
    ("suffix", "standard", "names"),
    [("c", "c11", ("cc", "gcc", "clang")), ("cc", "c++11", ("c++", "g++", "clang++"))],
)
def test_header_compiles_and_equals_abi(tmp_path, suffix, standard, names):
    source = tmp_path / f"probe.{suffix}"
    source.write_text(probe_source())
    program = tmp_path / "probe"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HEADER.parent}"]
    subprocess.run([compiler(*names), *flags, str(source), "-o", str(program)], check=True)
    output = subprocess.check_output([str(program)], text=True)
    said = dict(line.rsplit(" ", 1) for line in output.splitlines())
    for name, struct in STRUCTS.items():
        assert int(said[name]) == size(struct)
        for field, offset in offsets(struct):
            assert int(said[f"{name}.{field}"]) == offset, f"{name}.{field}"
    for macro in MACROS:
        assert int(said[macro]) == getattr(abi, macro.removeprefix("MTLQ_")), macro


def test_every_field_of_the_header_is_compared():
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\n\}", code, re.DOTALL)
    assert {name for name, _ in structs} == set(STRUCTS)
    for name, body in structs:
        fields = re.findall(r"(\w+)(?:\[\d+\])?;", body)
        assert fields == [field for field, _ in offsets(STRUCTS[name])], name


def test_library_exports_the_list_and_nothing_else():
    path = Path(abi.lib._name)
    flags = ["-gU"] if path.suffix == ".dylib" else ["-D", "--defined-only"]
    symbols = subprocess.check_output([compiler("nm"), *flags, str(path)], text=True)
    names = {line.split()[-1].removeprefix("_") for line in symbols.splitlines()}
    names = {name for name in names if not name.startswith("_")}  # of sanitizers and coverage
    assert names == set(EXPORTS)


def test_list_header_and_abi_name_the_same_functions():
    declared = re.findall(r"^MTLQ_API [^;(]*?\b(mtlq_\w+)\(", HEADER.read_text(), re.MULTILINE)
    mirrored = [f"mtlq_{name}" for name in (*abi._FALLIBLE, *abi._INFALLIBLE)]
    assert sorted(declared) == sorted(EXPORTS) == sorted(mirrored)
