"""`mtlqwen doctor --metal` on the fake: the checks before the model, and how failures read."""

from __future__ import annotations

import itertools

from click.testing import CliRunner

from mtlqwen.cli import cli
from mtlqwen.doctor import examine


def first(count: int) -> list[tuple[str, bool, str]]:
    findings = itertools.islice(examine("metal"), count)
    return [(finding.what, finding.is_right, finding.detail) for finding in findings]


def test_sparse_memory_of_every_page_size_is_tried(fake):
    assert first(3)[2] == ("sparse memory", True, "pages of 16384, 65536, 262144 bytes")


def test_sparse_memory_that_does_not_work_is_found(fake):
    fake.set(fail_dispatch=1)
    what, is_right, detail = first(3)[2]
    assert (what, is_right) == ("sparse memory", False)
    assert "injected fault" in detail


def test_page_tables_are_tried_where_there_is_no_sparse_memory(fake):
    fake.set(version=1506)
    what, is_right, detail = first(3)[2]
    assert (what, is_right) == ("sparse memory", True)
    assert detail == "pages of 16384 bytes by page table: the system is older than macOS 26"


def test_devices_lists_the_metal_device_and_how_it_maps_pages(fake):
    listed = "metal: Fake GPU (kernels emulated), apple9, 4.0 GiB; pages of 16"
    assert f"{listed} KiB, 64 KiB, 256 KiB\n" in CliRunner().invoke(cli, ["devices"]).output
    fake.set(sparse=0)
    why = "by page table: the GPU does not support placement sparse\n"
    assert f"{listed} KiB {why}" in CliRunner().invoke(cli, ["devices"]).output


def test_device_of_a_command_may_come_from_the_environment(fake):
    fake.set(family=1006)
    result = CliRunner().invoke(cli, ["generate", "hello"], env={"MTLQ_DEVICE": "metal"})
    assert "not an Apple GPU" in str(result.exception)
