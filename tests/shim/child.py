"""Runs Python code in a process of its own, which may end by a fault."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mtlqwen

PATHS = [str(Path(mtlqwen.__file__).parents[1]), str(Path(__file__).parent)]


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)},
            capture_output=True,
            text=True,
            timeout=300,
        )
