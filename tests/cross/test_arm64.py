"""The arm64 library, cross-compiled and run under qemu: the scripts of `make test-arm64`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def run(script: str) -> str:
    command = [str(ROOT / "tests/cross" / script), sys.executable]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_library_works_on_arm64() -> None:
    assert "arm64: passed" in run("run_arm64.sh")


def test_kernels_give_the_same_bits_on_arm64() -> None:
    assert "are equal" in run("kernel_bits.sh")
