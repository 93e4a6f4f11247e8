"""Sparse buffers: the processor's page tables do what the map operations say, and nothing leaks."""

import mmap
import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from child import run_python

from mtlqwen import abi
from mtlqwen.device import Buffer, Heap
from mtlqwen.errors import DeviceError, LimitError

PAGE = 64 << 10
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def mapping(sparse: Buffer, heap: Heap, pages, heap_pages, num_pages=1) -> np.ndarray:
    ops = np.zeros(np.broadcast(pages, heap_pages).size, abi.MAP_OP)
    ops["buffer"], ops["heap"], ops["num_pages"] = sparse.id, heap.id, num_pages
    ops["page"], ops["heap_page"] = pages, heap_pages
    return ops


def unmapping(sparse: Buffer, pages, num_pages=1) -> np.ndarray:
    ops = np.zeros(np.size(pages), abi.MAP_OP)
    ops["kind"], ops["buffer"], ops["heap"] = abi.UNMAP, sparse.id, abi.NO_ID
    ops["page"], ops["num_pages"] = pages, num_pages
    return ops


def view(memory: Buffer | Heap, page_bytes: int = PAGE) -> np.ndarray:
    return memory.array(np.uint8, (memory.num_bytes // page_bytes, page_bytes))


def memory_of_process(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def num_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_a_page_mapped_twice_is_one_page(device):
    sparse, heap = device.sparse(64 * PAGE, PAGE), device.heap(8 * PAGE, PAGE)
    device.map(mapping(sparse, heap, [3, 40], 5))
    pages = view(sparse)
    pages[3] = np.arange(PAGE) % 251
    assert np.array_equal(pages[40], pages[3])
    assert np.array_equal(view(heap)[5], pages[3])
    view(heap)[5, 7] = 99
    assert pages[3, 7] == pages[40, 7] == 99


def test_two_buffers_share_a_heap_page(device):
    first, second = device.sparse(PAGE, PAGE), device.sparse(PAGE, PAGE)
    heap = device.heap(PAGE, PAGE)
    device.map(np.concatenate([mapping(first, heap, 0, 0), mapping(second, heap, 0, 0)]))
    view(first)[0] = 7
    assert (view(second)[0] == 7).all()


def test_remapping_shows_the_new_page_and_keeps_the_old_contents(device):
    sparse, heap = device.sparse(PAGE, PAGE), device.heap(2 * PAGE, PAGE)
    device.map(mapping(sparse, heap, 0, 0))
    view(sparse)[0] = 1
    device.map(mapping(sparse, heap, 0, 1))
    assert (view(sparse)[0] == 0).all()
    view(sparse)[0] = 2
    device.map(mapping(sparse, heap, 0, 0))
    assert (view(sparse)[0] == 1).all()
    assert (view(heap)[1] == 2).all()


def test_operations_of_one_call_apply_in_order(device):
    sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(4 * PAGE, PAGE)
    view(heap)[:] = np.arange(4)[:, None]
    device.map(
        np.concatenate(
            [
                mapping(sparse, heap, 0, 0, num_pages=4),
                unmapping(sparse, 1, num_pages=2),
                mapping(sparse, heap, 2, 3),
                mapping(sparse, heap, 1, 3),
            ]
        )
    )
    assert view(sparse)[:, 0].tolist() == [0, 3, 3, 3]


@pytest.mark.parametrize("page_bytes", [mmap.PAGESIZE, 3 * mmap.PAGESIZE, 16 << 10, 256 << 10])
def test_any_multiple_of_the_system_page_is_a_page(device, page_bytes):
    sparse, heap = (
        device.sparse(5 * page_bytes, page_bytes),
        device.heap(4 * page_bytes, page_bytes),
    )
    device.map(mapping(sparse, heap, 1, 0, num_pages=4))
    view(sparse, page_bytes)[1:] = np.arange(4)[:, None]
    assert view(heap, page_bytes)[:, -1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("case", ["never mapped", "unmapped", "beside a mapped page"])
def test_touching_an_unmapped_page_is_a_fault(case):
    code = """
import sys
from mtlqwen.device import Device
from test_sparse import PAGE, mapping, unmapping, view
device = Device.open(num_threads=1)
sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(PAGE, PAGE)
if sys.argv[1] != "never mapped":
    device.map(mapping(sparse, heap, 1, 0))
    view(sparse)[1] = 1
if sys.argv[1] == "unmapped":
    device.map(unmapping(sparse, 1))
print("before", flush=True)
print(view(sparse)[2 if sys.argv[1] == "beside a mapped page" else 1, 0])
"""
    result = run_python(code, case)
    assert result.stdout == "before\n"
    assert result.returncode != 0


@LINUX
def test_memory_is_committed_on_first_touch_and_returned_with_the_heap(device):
    num_bytes = 1 << 30
    before = memory_of_process("VmRSS")
    buffer = device.buffer(num_bytes)
    sparse, heap = device.sparse(num_bytes, PAGE), device.heap(num_bytes, PAGE)
    device.map(mapping(sparse, heap, 0, 0, num_pages=num_bytes // PAGE))
    assert memory_of_process("VmRSS") - before < 16 << 20
    view(sparse)[:512] = 1  # 32 MiB
    view(buffer)[:512] = 1
    assert 64 << 20 <= memory_of_process("VmRSS") - before < 80 << 20
    device.map(unmapping(sparse, 0, num_pages=num_bytes // PAGE))
    heap.free()
    buffer.free()
    assert memory_of_process("VmRSS") - before < 16 << 20


@LINUX
def test_a_hundred_thousand_maps_and_unmaps_leave_nothing_behind(device):
    num_pages = 500
    sparse, heap = device.sparse(num_pages * PAGE, PAGE), device.heap(num_pages * PAGE, PAGE)
    shuffled = np.random.default_rng(1).permutation(num_pages)
    maps = mapping(sparse, heap, np.arange(num_pages), shuffled)
    unmaps = unmapping(sparse, shuffled)
    device.map(maps)
    device.map(unmaps)
    mappings, memory = num_mappings(), memory_of_process("VmRSS")
    for _ in range(100):
        device.map(maps)
        device.map(unmaps)
    assert num_mappings() <= mappings + 4
    assert memory_of_process("VmRSS") - memory < 8 << 20
    heap.free()


@LINUX
def test_pages_that_follow_one_another_are_one_mapping(device):
    num_pages = 200
    sparse, heap = device.sparse(num_pages * PAGE, PAGE), device.heap(num_pages * PAGE, PAGE)
    before = num_mappings()
    device.map(mapping(sparse, heap, np.arange(num_pages), np.arange(num_pages)))
    assert num_mappings() <= before + 1
    device.map(mapping(sparse, heap, np.arange(num_pages), np.arange(num_pages)[::-1]))
    assert num_mappings() >= before + num_pages - 1


@LINUX
def test_the_mapping_limit_is_refused_before_the_system_refuses(device):
    page = mmap.PAGESIZE
    limit = device.info.max_mappings
    sparse, heap = device.sparse((limit + 10) * page, page), device.heap(2 * page, page)
    device.map(mapping(sparse, heap, 5, 0))
    view(sparse, page)[5] = 3
    with pytest.raises(LimitError, match=r"vm\.max_map_count"):
        device.map(mapping(sparse, heap, np.arange(limit + 10), 1))
    assert (view(sparse, page)[5] == 3).all()
    view(heap, page)[0] = 4
    assert (view(sparse, page)[5] == 4).all()
    device.map(unmapping(sparse, 0, num_pages=limit + 10))
    heap.free()


def test_nothing_is_applied_if_one_operation_is_wrong(device):
    sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(4 * PAGE, PAGE)
    view(heap)[:] = np.arange(4)[:, None]
    device.map(mapping(sparse, heap, 0, 0))
    wrong = mapping(sparse, heap, [0, 9], [2, 0])
    with pytest.raises(DeviceError, match="operation 1"):
        device.map(wrong)
    assert view(sparse)[0, 0] == 0


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("kind", 2, abi.E_ARGUMENT),
        ("reserved", 1, abi.E_ARGUMENT),
        ("buffer", 10**6, abi.E_NOT_FOUND),
        ("heap", 10**6, abi.E_NOT_FOUND),
        ("heap", abi.NO_ID, abi.E_NOT_FOUND),
        ("page", 4, abi.E_ARGUMENT),
        ("page", 2**64 - 1, abi.E_ARGUMENT),
        ("heap_page", 2, abi.E_ARGUMENT),
        ("heap_page", 2**63, abi.E_ARGUMENT),
        ("num_pages", 3, abi.E_ARGUMENT),
        ("num_pages", 2**64 - 1, abi.E_ARGUMENT),
    ],
)
def test_a_wrong_operation_is_refused(device, field, value, status):
    sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(2 * PAGE, PAGE)
    ops = mapping(sparse, heap, 0, 0)
    ops[field] = value
    with pytest.raises(DeviceError) as caught:
        device.map(ops)
    assert caught.value.status == status


def test_only_sparse_buffers_and_heaps_of_one_page_size_map(device):
    plain, sparse = device.buffer(4 * PAGE), device.sparse(4 * PAGE, PAGE)
    heap, other = device.heap(PAGE, PAGE), device.heap(2 * PAGE, 2 * PAGE)
    for ops in (
        mapping(plain, heap, 0, 0),
        mapping(sparse, other, 0, 0),
        unmapping(plain, 0),
    ):
        with pytest.raises(DeviceError):
            device.map(ops)


@pytest.mark.parametrize(
    ("num_bytes", "page_bytes"),
    [(PAGE, 1000), (PAGE, 0), (PAGE + 1, PAGE), (0, PAGE), (1 << 60, PAGE)],
)
def test_wrong_sizes_are_refused(device, num_bytes, page_bytes):
    for create in (device.sparse, device.heap):
        with pytest.raises(DeviceError):
            create(num_bytes, page_bytes)


def test_a_mapped_heap_is_not_freed(device):
    sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(PAGE, PAGE)
    device.map(mapping(sparse, heap, [0, 2], 0))
    for pages_left in (2, 1):
        with pytest.raises(DeviceError, match=f"{pages_left} pages"):
            heap.free()
        device.map(unmapping(sparse, 4 - 2 * pages_left))
    heap.free()


def test_a_freed_sparse_buffer_unmaps_its_pages(device):
    sparse, heap = device.sparse(4 * PAGE, PAGE), device.heap(PAGE, PAGE)
    device.map(mapping(sparse, heap, [0, 1, 2, 3], 0))
    sparse.free()
    heap.free()


@LINUX
def test_a_heap_is_a_file_descriptor_that_is_closed(device):
    before = os.listdir("/proc/self/fd")
    heaps = [device.heap(PAGE, PAGE) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 10
    for heap in heaps:
        heap.free()
    assert len(os.listdir("/proc/self/fd")) == len(before)


@LINUX
def test_running_out_of_file_descriptors_is_a_clear_error(device):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        with pytest.raises(LimitError, match="open files"):
            for _ in range(20):
                device.heap(PAGE, PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    device.heap(PAGE, PAGE)


def test_random_operations_show_what_a_model_of_them_shows(device):
    rng = np.random.default_rng(7)
    num_pages, num_heap_pages = 24, 16
    sparse, heap = device.sparse(num_pages * PAGE, PAGE), device.heap(num_heap_pages * PAGE, PAGE)
    view(heap)[:, 0] = np.arange(num_heap_pages)
    model = np.full(num_pages, -1)
    for _ in range(300):
        calls = []
        for _ in range(rng.integers(1, 5)):
            count = int(rng.integers(0, 8))
            page = int(rng.integers(0, num_pages - count + 1))
            if rng.random() < 0.4:
                calls.append(unmapping(sparse, page, count))
                model[page : page + count] = -1
            else:
                heap_page = int(rng.integers(0, num_heap_pages - count + 1))
                calls.append(mapping(sparse, heap, page, heap_page, count))
                model[page : page + count] = np.arange(heap_page, heap_page + count)
        device.map(np.concatenate(calls))
        mapped = model >= 0
        assert np.array_equal(view(sparse)[mapped, 0], model[mapped])
