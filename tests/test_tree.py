"""What holds for every source file of the project: short, finished, at home anywhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".m", ".metal", ".cpp", ".cu", ".sh"}
SUFFIXES |= {".rs", ".go"}
FOLDERS = ("mtlqwen", "shim", "kernels", "tests", "bench", "tools", "examples")
MAX_LINES = 500
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
OWN_FOLDERS = ("home", "Users", "tmp", "root", "work")  # of one machine
ABSOLUTE_PATH = re.compile(rf"[\"'\s]/({'|'.join(OWN_FOLDERS)})/")
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in SUFFIXES and path != Path(__file__)
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES, "split it"
    assert not UNFINISHED.search(text)
    assert not ABSOLUTE_PATH.search(text)
    assert not re.search(r"[ \t]+$", text, re.MULTILINE), "trailing blanks"


def test_no_module_is_named_for_leftovers():
    names = {path.stem for path in FILES if path.suffix in {".py", ".pyx"}}
    assert not names & {"utils", "helpers", "common", "misc"}
