"""The benchmarks of the host side, which nothing else runs."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_they_run_on_the_engine_as_it_is():
    files = [str(BENCH / "test_engine_hot_path.py"), str(BENCH / "test_sample.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
