"""Sparse buffers, of Metal and as page tables: pages, aliases, order, residency, fallbacks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mtlqwen import abi
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError

from . import small_kernels
from .small_kernels import dispatches

PAGE = 16384
SYSTEMS = {"sparse": 2604, "page table, residency sets": 1500, "page table": 1400}


@pytest.fixture(params=SYSTEMS.values(), ids=SYSTEMS.keys())
def metal(fake, request):
    fake.set(version=request.param)
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
    return small_kernels.store(device, sparse, page * PAGE, value)


def load(device, sparse, page):
    """The first words of a page, as a kernel reads them."""
    kernel = "copy_from_page" if device.info.page_table_reason else "copy"
    target = device.buffer(64)
    records = dispatches(device, target, [(kernel, 0)], source=(sparse, page * PAGE), num_values=16)
    device.wait(device.submit((device.plan(*records),)))
    return target.array(np.uint32, (16,)).tolist()


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


@pytest.mark.parametrize("version", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_profiled_dispatches_see_the_mappings_too(fake, version):
    fake.set(version=version)
    with Device.open("metal", profile=True) as device:
        heap, sparse = device.heap(2 * PAGE, PAGE), device.sparse(2 * PAGE, PAGE)
        plan = store(device, sparse, 0, 4)
        device.wait(device.submit((plan,), ops((abi.MAP, sparse.id, heap.id, 0, 1, 1))))
        assert words(heap, 1)[0] == 4
        assert plan.times()[0] > 0


def test_one_heap_page_shows_in_two_buffers(metal):
    heap = metal.heap(2 * PAGE, PAGE)
    first, second = metal.sparse(4 * PAGE, PAGE), metal.sparse(4 * PAGE, PAGE)
    both = ops((abi.MAP, first.id, heap.id, 1, 1, 1), (abi.MAP, second.id, heap.id, 3, 1, 1))
    metal.wait(metal.submit((store(metal, first, 1, 5),), both))
    assert load(metal, second, 3) == list(range(5, 21))


def test_long_runs_and_many_operations_land_where_they_belong(fake, metal):
    heap, sparse = metal.heap(200 * PAGE, PAGE), metal.sparse(200 * PAGE, PAGE)
    metal.map(ops(*((abi.MAP, sparse.id, heap.id, p, 199 - p, 1) for p in range(200))))
    metal.wait(metal.submit((store(metal, sparse, 150, 1), store(metal, sparse, 3, 2))))
    assert words(heap, 49)[0] == 1
    assert words(heap, 196)[0] == 2
    assert fake.get("mapped_tiles") == (0 if metal.info.page_table_reason else 200)
    metal.map(ops((abi.UNMAP, sparse.id, abi.NO_ID, 0, 0, 200)))
    heap.free()
    assert fake.get("mapped_tiles") == 0


def test_operations_of_one_call_count_in_their_order(metal):
    """The last to name a page decides, also where runs overlap."""
    heap, sparse = metal.heap(8 * PAGE, PAGE), metal.sparse(8 * PAGE, PAGE)
    run = (abi.MAP, sparse.id, heap.id, 0, 0, 4)
    gone = (abi.UNMAP, sparse.id, abi.NO_ID, 1, 0, 2)
    metal.map(ops(run, gone, (abi.MAP, sparse.id, heap.id, 2, 7, 1), (*run[:3], 0, 4, 1)))
    plans = [store(metal, sparse, page, 10 * page) for page in (0, 2, 3)]
    metal.wait(metal.submit(plans))
    assert [words(heap, page)[0] for page in (4, 7, 3)] == [0, 20, 30]


def test_heap_that_came_while_a_submission_runs_is_mapped_behind_it(fake, metal):
    fake.set(stall_ms=20)
    sparse = metal.sparse(2 * PAGE, PAGE)
    heaps = [metal.heap(PAGE, PAGE) for _ in range(2)]
    for value, heap in enumerate(heaps):
        ticket = metal.submit(
            (store(metal, sparse, 1, value),), ops((abi.MAP, sparse.id, heap.id, 1, 0, 1))
        )
    metal.wait(ticket)
    assert [words(heap, 0)[0] for heap in heaps] == [0, 1]


def test_sparse_buffer_has_no_address_in_the_process(metal):
    sparse = metal.sparse(PAGE, PAGE)
    with pytest.raises(DeviceError, match="contents of the heap"):
        sparse.array(np.uint8, (1,))


def test_page_size_that_metal_has_not_is_refused(metal):
    for make in (metal.sparse, metal.heap):
        with pytest.raises(DeviceError, match="pages of 32768 bytes, must be 16384"):
            make(32768, 32768)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2604, "access to unmapped tile 6 of a sparse buffer"),
        (1506, "access through an unmapped entry of a page table"),
    ],
)
def test_touch_of_a_page_that_was_unmapped_is_caught(shim, version, message):
    program = f"""
from mtlqwen import abi
from mtlqwen.device import Device
from tests.metal.objc import build, fake_metal
from tests.metal.objc.test_sparse import PAGE, ops, store
with fake_metal.FakeMetal(build.library()) as fake:
    fake.catch_faults()
    fake.set(version={version})
    device = Device.open("metal")
    heap, sparse = device.heap(PAGE, PAGE), device.sparse(8 * PAGE, PAGE)
    plan = store(device, sparse, 6, 0)
    device.wait(device.submit((plan,), ops((abi.MAP, sparse.id, heap.id, 6, 0, 1))))
    print("mapped")
    device.wait(device.submit((plan,), ops((abi.UNMAP, sparse.id, abi.NO_ID, 6, 0, 1))))
"""
    command = [sys.executable, "-u", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (86, "mapped\n")
    assert message in done.stderr


def test_page_table_is_bound_at_whole_pages_and_holds_no_grid(fake):
    fake.set(version=1506)
    with Device.open("metal") as device:
        sparse, target = device.sparse(2 * PAGE, PAGE), device.buffer(64)
        records = dispatches(device, sparse, [("store_in_page", 0)], offset_bytes=PAGE + 16)
        with pytest.raises(DeviceError, match="offset 16400, but kernels see buffer"):
            device.plan(*records)
        records = dispatches(device, target, [("store", 0)], num_values=16, grid=sparse)
        with pytest.raises(DeviceError, match=r"grid in buffer \d+, which is a page table"):
            device.plan(*records)


# ---- which systems can map -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"version": 1506}, "older than macOS 26"),
        ({"version": 2604, "sparse": 0}, "does not support placement sparse"),
        ({"version": 2603, "sparse_works": 0}, "test of placement sparse failed"),
    ],
)
def test_device_without_sparse_buffers_makes_page_tables_and_says_why(fake, settings, reason):
    fake.set(**settings)
    with Device.open("metal") as device:
        assert device.info.sparse_page_bytes == (16384,)
        assert reason in device.info.page_table_reason


def test_probe_finds_sparse_buffers_where_the_system_does_not_tell(fake):
    fake.set(version=2600, sparse=0)
    with Device.open("metal") as device:
        assert device.info.sparse_page_bytes == (16384, 65536, 262144)
        assert device.info.page_table_reason == ""
