"""The shim of the metal device under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer.

The runtime finds the use of dead Objective-C objects by itself; this is about the shim's own
structs, their arrays, what it hands to the fake, and what it shares with completion handlers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import build

HERE = Path(__file__).parent
PROGRAM = f"""
import sys
import pytest
sys.path.insert(0, {str(HERE.parents[1])!r})
from metal.objc import build
mode, *files = sys.argv[1:]
plain = build.library
build.library = lambda: plain(mode)
options = ["-q", "-s", "-x", "-p", "no:cacheprovider", "-k", "not caught"]  # no child processes
sys.exit(pytest.main([*options, *files]))
"""
FILES = [str(HERE / name) for name in ("test_device.py", "test_sparse.py")]
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # those of Python; the fake counts objects
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1",  # Python, NumPy
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["asan", "tsan"])
def test_sanitizer_has_nothing_to_report(shim, mode):
    environment = os.environ | OPTIONS | {"LD_PRELOAD": str(build.sanitizer_runtime(mode))}
    command = [sys.executable, "-c", PROGRAM, mode, *FILES]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[:6000]
