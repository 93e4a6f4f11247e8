"""The argument structs have one layout: for the host's C compiler and for the kernels'."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from .emulator.build import COMPILER, HERE, KERNELS
from .emulator.translate import preprocess, translate

ARGS = KERNELS.parent / "args.h"
STRUCT = re.compile(r"typedef struct (mtlq_\w+) \{(.*?)\n\} \1;", re.S)
FIELD = re.compile(r"^\s+(?:uint32_t|uint64_t|float) (\w+)(?:\[\d+\])?;", re.M)
STRUCTS = {name: FIELD.findall(body) for name, body in STRUCT.findall(ARGS.read_text())}


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> dict[str, int]:
    """Sizes of structs and offsets of fields in C, by the expression that C++ has for them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    lines = [f'#include "{ARGS}"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, fields in STRUCTS.items():
        lines.append(f'printf("sizeof({name}) %zu\\n", sizeof({name}));')
        for field in fields:
            place = f"offsetof({name}, {field})"
            lines.append(f'printf("__builtin_{place} %zu\\n", {place});')
    folder = tmp_path_factory.mktemp("args")
    (folder / "layout.c").write_text("\n".join([*lines, "return 0; }\n"]))
    subprocess.run([compiler, folder / "layout.c", "-o", folder / "layout"], check=True)
    printed = subprocess.run([folder / "layout"], capture_output=True, text=True, check=True).stdout
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in printed.splitlines()}


def differences(kernel_text: str, layout: dict[str, int], tmp_path) -> list[str]:
    """The expressions that the kernels' compiler has other values for."""
    checks = [f'static_assert({what} == {size}, "{what}");' for what, size in layout.items()]
    source = tmp_path / "args.cpp"
    source.write_text(translate(kernel_text, "metal_cpu.h").text + "\n".join(checks))
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-ferror-limit=0", f"-isystem{HERE}"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0 or "static assertion failed" in done.stderr, done.stderr
    return re.findall(r"static assertion failed[^:]*: (.*)", done.stderr)


def test_every_struct_and_field_was_found():
    assert ARGS.read_text().count("typedef struct") == len(STRUCTS)
    for name, body in STRUCT.findall(ARGS.read_text()):
        assert re.sub(r"/\*.*?\*/", "", body, flags=re.S).count(";") == len(STRUCTS[name]), name


def test_kernels_lay_argument_structs_out_as_c_does(emulator, layout, tmp_path):
    text = preprocess(KERNELS / "rmsnorm.metal", COMPILER)
    assert differences(text, layout, tmp_path) == []


def test_a_narrower_field_is_reported(emulator, layout, tmp_path):
    text = preprocess(KERNELS / "rmsnorm.metal", COMPILER)
    narrow = text.replace("uint64_t row_bytes;", "uint32_t row_bytes;")
    assert narrow != text
    assert "sizeof(mtlq_linear_args)" in differences(narrow, layout, tmp_path)
