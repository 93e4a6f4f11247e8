"""What mtlq.h says: its text taken apart, and its sizes, offsets and values by a C compiler."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "shim" / "mtlq.h"
EXPORTS = (ROOT / "shim" / "exports.txt").read_text().split()

_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
MACROS = re.findall(r"^#define (MTLQ_\w+) +[^\s_]", _TEXT, re.MULTILINE)
FIELDS = {
    name: re.findall(r"(\w+)(?:\[\d+\])?;", body)
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\}", _TEXT, re.DOTALL)
}


def prototypes() -> dict[str, str]:
    """Functions by name, as "result (types of parameters)"."""
    found = re.findall(
        r"^MTLQ_API ([^;(]*?)\b(mtlq_\w+)\((.*?)\);", _TEXT, re.MULTILINE | re.DOTALL
    )
    return {name: f"{result.strip()} ({_types(rest)})" for result, name, rest in found}


def _types(parameters: str) -> str:
    declared = [" ".join(parameter.split()) for parameter in parameters.split(",")]
    return ", ".join(re.sub(r"(?<=[ *])\w+$", "", text).strip() for text in declared)


def compiler(*names: str) -> str:
    found = next((name for name in names if shutil.which(name)), None)
    if not found:
        pytest.skip(f"needs one of {', '.join(names)}")
    return found


def measure(folder: Path, suffix: str = "c", standard: str = "c11") -> dict[str, tuple[int, ...]]:
    """name -> (value,) of macros, (size,) of structs, (offset, size) of their fields."""
    lines = ['#include "mtlq.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, fields in FIELDS.items():
        lines.append(f'printf("{name} %d\\n", (int)sizeof({name}));')
        for field in fields:
            place = f"(int)offsetof({name}, {field}), (int)sizeof((({name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %d %d\\n", {place});')
    for macro in MACROS:
        lines.append(f'printf("{macro} %llu\\n", (unsigned long long){macro});')
    source, program = folder / f"probe.{suffix}", folder / "probe"
    source.write_text("\n".join([*lines, "return 0; }"]))
    names = ("cc", "gcc", "clang") if suffix == "c" else ("c++", "g++", "clang++")
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HEADER.parent}"]
    subprocess.run([compiler(*names), *flags, str(source), "-o", str(program)], check=True)
    output = subprocess.check_output([str(program)], text=True)
    return {
        name: tuple(map(int, numbers)) for name, *numbers in map(str.split, output.splitlines())
    }
