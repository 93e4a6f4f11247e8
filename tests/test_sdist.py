"""The source distribution has every file that a build or a reader of it needs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP_LEVEL = ("setup.py", "pyproject.toml", "Makefile", "mtlq.pc.in", "README.md", "LICENSE")
FOLDERS = ("shim", "kernels", "mtlqwen", "docs", "examples")
MADE = {".so", ".dylib", ".pyc"}  # by the build


def test_every_source_is_in_the_source_distribution(tmp_path):
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    listed = set((tmp_path / "mtlqwen.egg-info" / "SOURCES.txt").read_text().splitlines())
    wanted = {*TOP_LEVEL}
    for folder in FOLDERS:
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        wanted |= {str(path.relative_to(ROOT)) for path in files if path.suffix not in MADE}
    wanted = {name for name in wanted if not (name.startswith("mtlqwen/") and name.endswith(".c"))}
    assert sorted(wanted - listed) == []
