"""The shim with kernels of its own, under each sanitizer and with the code of other systems."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "tests/shim/shim_test.c",
    *sorted(ROOT.glob("shim/*.c")),
    *sorted(ROOT.glob("shim/cpu/*.c")),
]
VARIANTS = {
    "plain": ["-O2"],
    "without futex and memfd": ["-O2", "-DMTLQ_NO_FUTEX", "-DMTLQ_NO_MEMFD"],
    "thread sanitizer": ["-O1", "-fsanitize=thread"],
    "address sanitizer": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}


@pytest.fixture(scope="module", params=VARIANTS)
def program(request, tmp_path_factory):
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if not compiler:
        pytest.skip("needs a C compiler")
    output = tmp_path_factory.mktemp("shim") / "shim_test"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, *VARIANTS[request.param], *map(str, SOURCES), "-lm"]
    built = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True)
    if built.returncode and "sanitizer" in request.param and "cannot find" in built.stderr:
        pytest.skip(f"{compiler} has no {request.param} on {platform.machine()}")
    assert built.returncode == 0, built.stderr
    return output


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_shim_program_finds_no_failure(program, num_workers):
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run(
        [str(program), str(num_workers), "10"],
        env=environment,  # without the sanitizer of the tests' own process
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
