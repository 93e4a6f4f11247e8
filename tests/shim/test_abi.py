"""Version 1 of the ABI only grows: data/abi-1.txt records what each minor version promised.

A line of it is never changed or removed. What mtlq.h gains gets lines of the new minor at the end,
also a struct that grows: old programs pass the old size.
"""

import ctypes
import re
import subprocess
from ctypes import byref, c_void_p
from pathlib import Path

import pytest
from header import EXPORTS, FIELDS, ROOT, compiler, measure, prototypes

from mtlqwen import abi
from mtlqwen.errors import MtlqError

RECORD = (Path(__file__).parent / "data" / f"abi-{abi.ABI_MAJOR}.txt").read_text()
LINES = [line.split(" ", 2) for line in RECORD.splitlines() if not line.startswith("#")]
MINORS = [int(version.split(".")[1]) for version, _, _ in LINES]
SIZES = {  # of each struct, by minor version
    name: {
        m: int(text.split()[1])
        for m, (_, _, text) in zip(MINORS, LINES, strict=True)
        if text.split()[0] == name
    }
    for name in FIELDS
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> set[str]:
    """The header as lines of the record, without versions."""
    lines = {f"function {name} {text}" for name, text in prototypes().items()}
    for name, numbers in measure(tmp_path_factory.mktemp("probe")).items():
        kind = "constant" if name.startswith("MTLQ_") else "field" if "." in name else "struct"
        lines.add(" ".join([kind, name, *map(str, numbers)]))
    return lines - {f"constant MTLQ_ABI_MINOR {abi.ABI_MINOR}"}


def recorded() -> set[str]:
    """All that holds now: of a struct the latest size."""
    lines = {f"{kind} {text}" for _, kind, text in LINES if kind != "struct"}
    return lines | {f"struct {name} {max(sizes.values())}" for name, sizes in SIZES.items()}


def test_no_promise_is_broken(facts):
    assert sorted(recorded() - facts) == []


def test_everything_in_the_header_is_recorded(facts):
    missing = sorted(facts - recorded())
    assert missing == [], f"a new minor version? append to data/abi-{abi.ABI_MAJOR}.txt"


def test_record_is_in_order_of_versions_up_to_this_one():
    assert sorted(MINORS) == MINORS
    assert MINORS[-1] <= abi.ABI_MINOR
    assert all(version.split(".")[0] == str(abi.ABI_MAJOR) for version, _, _ in LINES)


def test_only_structs_that_tell_their_size_have_grown():
    for name, sizes in SIZES.items():
        assert list(sizes.values()) == sorted(set(sizes.values())), f"{name} shrank"
        assert len(sizes) == 1 or FIELDS[name][0] == "struct_size", name


def test_exports_are_the_recorded_functions():
    assert {text.split()[0] for _, kind, text in LINES if kind == "function"} == set(EXPORTS)


def test_structs_of_the_first_version_are_taken(device):
    desc = abi.DeviceDesc(struct_size=SIZES["mtlq_device_desc"][0], num_threads=1)
    other = c_void_p()
    abi.lib.mtlq_device_open(b"cpu", byref(desc), byref(other))
    abi.lib.mtlq_device_close(other)
    memory = bytearray(b"\xee" * ctypes.sizeof(abi.DeviceInfo))
    info = abi.DeviceInfo.from_buffer(memory)
    info.struct_size = size = SIZES["mtlq_device_info"][0]
    abi.lib.mtlq_device_get_info(device.handle, byref(info))
    assert info.num_threads == device.info.num_threads
    assert memory[size:] == b"\xee" * (len(memory) - size), "written behind the caller's struct"


@pytest.fixture
def library_of_version(tmp_path):
    """Makes a library that exports everything, does nothing, and says that it is major.minor."""

    def build(major: int, minor: int) -> Path:
        source, library = tmp_path / "stub.c", tmp_path / f"libmtlq-{major}.{minor}.so"
        functions = [f"int {name}(void) {{ return 0; }}" for name in EXPORTS[1:]]
        version = f"unsigned mtlq_abi_version(void) {{ return {major << 16 | minor}; }}"
        source.write_text("\n".join([version, *functions]))
        command = [compiler("cc", "gcc", "clang"), "-shared", "-fPIC", str(source), "-o"]
        subprocess.run([*command, str(library)], check=True)
        return library

    assert EXPORTS[0] == "mtlq_abi_version"
    return build


@pytest.mark.parametrize("version", [(0, 9), (abi.ABI_MAJOR + 1, 0), (abi.ABI_MAJOR + 1, 9)])
def test_library_of_another_major_version_is_refused(library_of_version, version):
    with pytest.raises(MtlqError, match=r"has ABI {}\.{}, this package needs".format(*version)):
        abi.load(library_of_version(*version))


def test_library_of_an_older_minor_version_is_refused(library_of_version, monkeypatch):
    monkeypatch.setattr(abi, "ABI_MINOR", 3)
    with pytest.raises(MtlqError, match=r"has ABI 1\.2, this package needs 1\.3"):
        abi.load(library_of_version(1, 2))


def test_library_of_a_newer_minor_version_is_taken(library_of_version):
    library = abi.load(library_of_version(abi.ABI_MAJOR, abi.ABI_MINOR + 1))
    assert library.mtlq_abi_version() & 0xFFFF == abi.ABI_MINOR + 1


def test_client_of_a_newer_major_version_is_refused(monkeypatch):
    monkeypatch.setattr(abi, "ABI_MAJOR", abi.ABI_MAJOR + 1)
    with pytest.raises(MtlqError, match="build both together"):
        abi.load(Path(abi.lib._name))


def test_versions_of_the_build_are_those_of_header_and_package():
    template = (ROOT / "mtlq.pc.in").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    assert f"abi={abi.ABI_MAJOR}\n" in template
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE).group(1)
    assert f"\nVersion: {version}\n" in template
    assert f"-soname,libmtlq.so.{abi.ABI_MAJOR} " in (ROOT / "setup.py").read_text()
