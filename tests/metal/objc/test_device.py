"""The metal device through mtlqwen.device: memory, kernels, order, errors."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from mtlqwen import abi
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError

from .small_kernels import SOURCE, Chain, dispatches, store

PAGE = 16384


@pytest.fixture
def metal(fake):
    with Device.open("metal") as device:
        yield device


def status_of(error: pytest.ExceptionInfo[DeviceError]) -> int:
    return error.value.status & 0xFF


def test_info_names_the_gpu_and_its_sparse_pages(metal):
    assert metal.info.name == "Fake GPU (kernels emulated)"
    assert metal.info.isa == "apple9"
    assert metal.info.sparse_page_bytes == (16384, 65536, 262144)


def test_kernel_writes_what_the_process_reads(metal):
    chain = Chain(metal, 64)
    chain.run()
    np.testing.assert_array_equal(chain.values(), np.arange(64) * 3 + 1)


@pytest.mark.parametrize("seed", range(1, 9))
def test_barriers_of_the_plan_order_dispatches_that_are_shuffled(fake, metal, seed):
    fake.set(seed=seed)
    chain = Chain(metal, 64, steps=6)
    chain.run()
    np.testing.assert_array_equal(chain.values(), chain.expected())


def test_a_missing_barrier_is_noticed_under_some_order(fake):
    wrong = 0
    with Device.open("metal") as metal:
        for _ in range(8):
            chain = Chain(metal, 64, steps=6, barriers=False)
            chain.run()
            wrong += not np.array_equal(chain.values(), chain.expected())
    assert wrong


def test_submissions_run_in_order_without_a_wait_between(fake, metal):
    fake.set(stall_ms=5)
    chain = Chain(metal, 64, steps=2)
    tickets = [metal.submit((chain.plan,)) for _ in range(5)]
    assert tickets == sorted(tickets)
    metal.wait(tickets[-1])
    np.testing.assert_array_equal(chain.values(), chain.expected())


def test_wait_times_out_and_the_submission_goes_on(fake, metal):
    fake.set(stall_ms=300)
    chain = Chain(metal, 64)
    ticket = metal.submit((chain.plan,))
    with pytest.raises(DeviceError) as error:
        metal.wait(ticket, timeout_s=0.01)
    assert status_of(error) == abi.E_TIMEOUT
    metal.wait(ticket)
    assert metal.ticket_time(ticket) > 0


def test_memory_may_be_freed_while_the_gpu_uses_it(fake, metal):
    fake.set(stall_ms=50)
    chain = Chain(metal, 64)
    metal.submit((chain.plan,))
    chain.plan.free()
    chain.buffer.free()


def test_grid_may_come_from_a_buffer(metal):
    grid = metal.buffer(12)
    grid.array(np.uint32, (3,))[:] = 2, 1, 1
    chain = Chain(metal, 64, grid=grid)
    chain.run()
    np.testing.assert_array_equal(chain.values()[32:], np.zeros(32))
    np.testing.assert_array_equal(chain.values()[:32], np.arange(32) * 3 + 1)


def test_profile_times_every_dispatch(fake):
    with Device.open("metal", profile=True) as metal:
        chain = Chain(metal, 64, steps=3)
        chain.run()
        assert (chain.plan.times() > 0).all()
        np.testing.assert_array_equal(chain.values(), chain.expected())


# ---- wrapped memory --------------------------------------------------------------------------


def mapped_file(tmp_path, num_bytes: int) -> mmap.mmap:
    path = tmp_path / "data"
    np.arange(-(-num_bytes // 4), dtype=np.uint32).tofile(path)
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_wrapped_file_is_read_without_a_copy(metal, tmp_path):
    data = mapped_file(tmp_path, 3 * PAGE + 100)
    wrapped = metal.wrap(data)
    chain = Chain(metal, 16, kernel="copy", source=(wrapped, 3 * PAGE))
    chain.run()
    np.testing.assert_array_equal(chain.values(), 3 * PAGE // 4 + np.arange(16))
    chain.plan.free()
    wrapped.free()


@pytest.mark.parametrize("offset", [0, 8 * PAGE - 64, 8 * PAGE, 13 * PAGE + 64, 30 * PAGE])
def test_wrapped_file_longer_than_a_buffer_is_split_into_views(fake, tmp_path, offset):
    fake.set(max_buffer_bytes=16 * PAGE)
    data = mapped_file(tmp_path, 31 * PAGE)
    with Device.open("metal") as metal:
        wrapped = metal.wrap(data)
        chain = Chain(metal, 16, kernel="copy", source=(wrapped, offset))
        chain.run()
        np.testing.assert_array_equal(chain.values(), offset // 4 + np.arange(16))


def test_wrapping_an_unaligned_address_is_refused_with_the_page_size(metal):
    array = np.zeros(4 * PAGE, np.uint8)
    start = -array.ctypes.data % PAGE + 16
    with pytest.raises(DeviceError, match="no multiple of the page"):
        metal.wrap(array[start : start + 100])


def test_buffer_beyond_the_device_limit_is_refused_with_the_numbers(fake):
    fake.set(max_buffer_bytes=16 * PAGE)
    with Device.open("metal") as metal, pytest.raises(DeviceError, match=f"{16 * PAGE}"):
        metal.buffer(17 * PAGE)


# ---- kernels ---------------------------------------------------------------------------------


def test_source_that_does_not_compile_is_refused(metal):
    with pytest.raises(DeviceError, match=r"library_create: .*error"):
        metal.pipeline("broken", '#error "no kernel here"\n')


def test_unknown_kernel_is_not_found(metal):
    with pytest.raises(DeviceError, match="no_such_kernel") as error:
        metal.pipeline("no_such_kernel", SOURCE)
    assert status_of(error) == abi.E_NOT_FOUND


def test_function_constant_reaches_the_kernel(metal):
    chain = Chain(metal, 8, kernel="constant_value", constants=((0, 42),))
    chain.run()
    np.testing.assert_array_equal(chain.values(), np.full(8, 42))


def test_more_threads_than_the_pipeline_takes_are_refused(fake):
    fake.set(max_threads=8)
    with Device.open("metal") as metal, pytest.raises(DeviceError, match="takes 1 to 8") as error:
        Chain(metal, 64)
    assert status_of(error) == abi.E_LIMIT


def test_pipeline_with_too_much_threadgroup_memory_is_refused(fake):
    fake.set(group_bytes=32769)
    with Device.open("metal") as metal, pytest.raises(DeviceError, match="32769 bytes of thread"):
        metal.pipeline("step", SOURCE)


@pytest.mark.parametrize("field", ["grid", "group"])
def test_empty_grid_or_group_is_refused(metal, field):
    records, bindings, args = dispatches(metal, metal.buffer(64), [("step", 0)])
    records[field][0, 1] = 0
    with pytest.raises(DeviceError):
        metal.plan(records, bindings, args)


def test_pipelines_of_an_earlier_process_come_from_the_archive(fake):
    for _ in range(2):
        with Device.open("metal") as metal:
            metal.pipeline("step", SOURCE)
        assert fake.get("compiled") == 1


def test_archive_is_of_one_system_version_and_survives_damage(fake, tmp_path):
    with Device.open("metal") as metal:
        metal.pipeline("step", SOURCE)
    fake.set(version=2605)
    with Device.open("metal") as metal:
        metal.pipeline("step", SOURCE)
    assert fake.get("compiled") == 2
    archives = list(tmp_path.glob("Library/Caches/mtlqwen/*.binarchive"))
    assert len(archives) == 2
    for path in archives:
        path.write_bytes(b"damaged")
    with Device.open("metal") as metal:
        metal.pipeline("step", SOURCE)
    assert fake.get("compiled") == 3


def test_capture_writes_the_kernels_of_the_first_step(fake, tmp_path, monkeypatch):
    trace = tmp_path / "step.gputrace"
    monkeypatch.setenv("MTLQ_METAL_CAPTURE", str(trace))
    with Device.open("metal") as metal:
        chain = Chain(metal, 64, steps=2)
        chain.run()
        chain.run()
    assert trace.read_text().split() == ["start", "step"]


# ---- failures --------------------------------------------------------------------------------


def test_a_fault_of_the_gpu_fails_its_ticket_and_loses_the_device(fake):
    with Device.open("metal") as metal:
        chain = Chain(metal, 64)
        fake.set(fail_dispatch=fake.get("dispatches") + 1)
        ticket = metal.submit((chain.plan,))
        with pytest.raises(DeviceError, match="injected fault") as error:
            metal.wait(ticket)
        assert status_of(error) == abi.E_DEVICE
        with pytest.raises(DeviceError) as error:
            metal.submit((chain.plan,))
        assert status_of(error) == abi.E_LOST


def test_an_exception_of_metal_becomes_a_status(fake, metal):
    chain = Chain(metal, 64)
    fake.set(throw=1)
    with pytest.raises(DeviceError, match="submit: Metal raised an exception"):
        metal.submit((chain.plan,))
    fake.set(throw=0)
    chain.run()


def test_machine_without_an_apple_gpu_is_refused(fake):
    fake.set(family=1006)
    with pytest.raises(DeviceError, match="not an Apple GPU"):
        Device.open("metal")


def scenario(device: Device, data: mmap.mmap) -> np.ndarray:
    """Uses every part of the device once."""
    wrapped = device.wrap(data)
    heap = device.heap(4 * PAGE, PAGE)
    sparse = device.sparse(8 * PAGE, PAGE)
    op = np.zeros(1, abi.MAP_OP)
    op[0] = (abi.MAP, sparse.id, heap.id, 0, 2, 1, 2)
    chain = Chain(device, 64, steps=2)
    copy = Chain(device, 16, kernel="copy", source=(wrapped, 0))
    stored = store(device, sparse, 2 * PAGE, 7)
    device.wait(device.submit((chain.plan, copy.plan, stored), op))
    return np.concatenate([chain.values(), copy.values(), heap.array(np.uint32, (16,), PAGE)])


@pytest.mark.parametrize("version", [1400, 1500, 2604])
def test_every_failing_call_is_an_error_and_leaves_nothing_behind(
    fake, tmp_path, monkeypatch, version
):
    fake.set(version=version)
    data = mapped_file(tmp_path, 2 * PAGE)
    monkeypatch.setenv("MTLQ_METAL_CAPTURE", str(tmp_path / "trace"))
    with Device.open("metal") as device:
        wanted = scenario(device, data)
    num_calls, failures = fake.get("calls"), 0
    for call in range(1, num_calls + 1):
        fake.reset()
        fake.set(version=version, fail_at=call)
        for path in tmp_path.glob("Library/Caches/mtlqwen/*"):
            path.unlink()
        try:
            with Device.open("metal") as device:
                np.testing.assert_array_equal(scenario(device, data), wanted)
        except DeviceError:
            failures += 1
        assert fake.live_objects() == "", f"call {call}"
    assert num_calls > 30
    assert failures > num_calls // 2  # archives and captures may fail without harm


def test_fakes_have_every_method_of_their_protocols(shim):
    pairs = {
        "FakeDevice": "MTLDevice",
        "FakeBuffer": "MTLBuffer",
        "FakeHeap": "MTLHeap",
        "FakeLibrary": "MTLLibrary",
        "FakeArchive": "MTLBinaryArchive",
        "FakePipeline": "MTLComputePipelineState",
        "FakeQueue": "MTLCommandQueue",
        "FakeCommandBuffer": "MTLCommandBuffer",
        "FakeEncoder": "MTLComputeCommandEncoder",
        "FakeEvent": "MTLSharedEvent",
        "FakeResidencySet": "MTLResidencySet",
        "FakeMapper": "MTL4CommandQueue",
    }
    missing = {name: shim.missing_method(name, protocol) for name, protocol in pairs.items()}
    assert set(missing.values()) == {""}, missing
