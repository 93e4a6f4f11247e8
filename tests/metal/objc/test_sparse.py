"""Placement-sparse buffers: tiles, aliases, order between the queues, residency, the fallbacks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mtlqwen import abi
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError

from .small_kernels import dispatches

PAGE = 65536


@pytest.fixture
def metal(fake):
    with Device.open("metal") as device:
        yield device


def ops(*records: tuple[int, ...]) -> np.ndarray:
    """Of (kind, buffer, heap, page, heap_page, num_pages)."""
    array = np.zeros(len(records), abi.MAP_OP)
    for item, (kind, buffer, heap, page, heap_page, num_pages) in zip(array, records, strict=True):
        item["kind"], item["buffer"], item["heap"] = kind, buffer, heap
        item["page"], item["heap_page"], item["num_pages"] = page, heap_page, num_pages
    return array


def store(device, sparse, page, value):
    """A plan that writes value, value + 1, ... to the first words of a page."""
    records = dispatches(
        device, sparse, [("store", value)], offset_bytes=page * PAGE, num_values=16
    )
    return device.plan(*records)


def words(heap, page):
    return heap.array(np.uint32, (16,), page * PAGE).tolist()


def test_kernel_writes_through_a_mapping_into_the_heap(metal):
    heap, sparse = metal.heap(4 * PAGE, PAGE), metal.sparse(64 * PAGE, PAGE)
    op = ops((abi.MAP, sparse.id, heap.id, 40, 2, 1))
    metal.wait(metal.submit((store(metal, sparse, 40, 7),), op))
    assert words(heap, 2) == list(range(7, 23))


def test_mappings_and_submissions_alternate_in_order(fake, metal):
    """The same sparse page shows another heap page in each submission; none is waited for."""
    fake.set(stall_ms=3)
    heap, sparse = metal.heap(4 * PAGE, PAGE), metal.sparse(8 * PAGE, PAGE)
    for page in range(4):
        op = ops((abi.MAP, sparse.id, heap.id, 5, page, 1))
        ticket = metal.submit((store(metal, sparse, 5, 100 * page),), op)
    metal.wait(ticket)
    assert [words(heap, page)[0] for page in range(4)] == [0, 100, 200, 300]


def test_one_heap_page_shows_in_two_buffers(metal):
    heap = metal.heap(2 * PAGE, PAGE)
    first, second = metal.sparse(4 * PAGE, PAGE), metal.sparse(4 * PAGE, PAGE)
    both = ops((abi.MAP, first.id, heap.id, 1, 1, 1), (abi.MAP, second.id, heap.id, 3, 1, 1))
    metal.wait(metal.submit((store(metal, first, 1, 5),), both))
    target = metal.buffer(64)
    records = dispatches(metal, target, [("copy", 0)], source=(second, 3 * PAGE), num_values=16)
    metal.wait(metal.submit((metal.plan(*records),)))
    assert target.array(np.uint32, (16,)).tolist() == list(range(5, 21))


def test_long_runs_and_many_operations_land_where_they_belong(fake, metal):
    heap, sparse = metal.heap(200 * PAGE, PAGE), metal.sparse(200 * PAGE, PAGE)
    metal.map(ops(*((abi.MAP, sparse.id, heap.id, p, 199 - p, 1) for p in range(200))))
    metal.wait(metal.submit((store(metal, sparse, 150, 1), store(metal, sparse, 3, 2))))
    assert words(heap, 49)[0] == 1
    assert words(heap, 196)[0] == 2
    assert fake.get("mapped_tiles") == 200
    metal.map(ops((abi.UNMAP, sparse.id, abi.NO_ID, 0, 0, 200)))
    heap.free()
    assert fake.get("mapped_tiles") == 0


def test_sparse_buffer_has_no_address_in_the_process(metal):
    sparse = metal.sparse(PAGE, PAGE)
    with pytest.raises(DeviceError, match="contents of the heap"):
        sparse.array(np.uint8, (1,))


def test_page_size_that_metal_has_not_is_refused(metal):
    with pytest.raises(DeviceError, match="16384, 65536 or 262144"):
        metal.sparse(32768, 32768)


def test_touch_of_an_unmapped_tile_is_caught(shim):
    program = """
from mtlqwen.device import Device
from tests.metal.objc import build, fake_metal, test_sparse
with fake_metal.FakeMetal(build.library()) as fake:
    fake.catch_faults()
    device = Device.open("metal")
    sparse = device.sparse(8 * test_sparse.PAGE, test_sparse.PAGE)
    device.wait(device.submit((test_sparse.store(device, sparse, 6, 0),)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 86
    assert "access to unmapped tile 6 of a sparse buffer" in done.stderr


# ---- which systems can map -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"version": 1506}, "older than macOS 26"),
        ({"version": 2604, "sparse": 0}, "does not support placement sparse"),
        ({"version": 2603, "sparse_works": 0}, "test of placement sparse failed"),
    ],
)
def test_device_without_sparse_buffers_says_why(fake, settings, reason):
    fake.set(**settings)
    with Device.open("metal") as device:
        assert device.info.sparse_page_bytes == ()
        for make in (device.sparse, device.heap):
            with pytest.raises(DeviceError, match=reason) as error:
                make(PAGE, PAGE)
            assert error.value.status & 0xFF == abi.E_UNSUPPORTED


def test_probe_finds_sparse_buffers_where_the_system_does_not_tell(fake):
    fake.set(version=2600, sparse=0)
    with Device.open("metal") as device:
        assert device.info.sparse_page_bytes == (16384, 65536, 262144)


@pytest.mark.parametrize("version", [1400, 1500])
def test_kernels_run_on_systems_without_sparse_buffers(fake, version):
    fake.set(version=version)
    with Device.open("metal") as device:
        target = device.buffer(64)
        records = dispatches(device, target, [("store", 3)], num_values=16)
        device.wait(device.submit((device.plan(*records),)))
        assert target.array(np.uint32, (16,)).tolist() == list(range(3, 19))
