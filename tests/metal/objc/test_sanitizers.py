"""The shim of the metal device under AddressSanitizer and UndefinedBehaviorSanitizer.

The runtime finds the use of dead Objective-C objects by itself; this is about the shim's own
structs, their arrays, and what it hands to the fake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import build

HERE = Path(__file__).parent
PROGRAM = f"""
import sys
import pytest
sys.path.insert(0, {str(HERE.parents[1])!r})
from metal.objc import build
plain = build.library
build.library = lambda: plain("asan")
options = ["-q", "-x", "-p", "no:cacheprovider", "-k", "not caught"]  # without child processes
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""
FILES = ["test_device.py", "test_sparse.py"]


def test_sanitizers_have_nothing_to_report(shim):
    options = {
        "LD_PRELOAD": str(build.sanitizer_runtime()),
        "ASAN_OPTIONS": "detect_leaks=0",  # those of Python; the fake counts objects
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-c", PROGRAM, *(str(HERE / name) for name in FILES)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
