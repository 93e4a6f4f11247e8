"""Objects may be released in any order, once; nothing stays behind."""

import gc
import itertools
import mmap
import os
import resource
import sys
from ctypes import byref, c_void_p
from pathlib import Path

import numpy as np
import pytest
from child import run_python
from rotation import Rotation

from mtlqwen import abi
from mtlqwen.device import Buffer, Device
from mtlqwen.errors import DeviceError

PAGE = 64 << 10


def everything(device: Device) -> dict:
    rotation = Rotation(device, 4, 16)
    return {
        "plan": rotation.plan(device, 2),
        "x": rotation.x,
        "y": rotation.y,
        "indices": rotation.indices,
        "pipeline": device.pipeline("gather"),
        "device": device,
    }


@pytest.mark.parametrize("order", list(itertools.permutations(["plan", "x", "pipeline", "device"])))
def test_any_order_of_release(order):
    objects = everything(Device.open(num_threads=2))
    for name in order:
        item = objects[name]
        item.close() if name == "device" else item.free()
    for name in order:
        item = objects[name]
        item.close() if name == "device" else item.free()


def test_an_interrupt_after_a_release_does_not_release_twice(monkeypatch):
    released = []

    def interrupted(buffer: Buffer, handle: c_void_p) -> None:
        released.append(handle.value)
        abi.lib.mtlq_buffer_free(handle)
        raise KeyboardInterrupt

    with Device.open(num_threads=1) as device:
        buffer = device.buffer(4096)
        with monkeypatch.context() as patched:
            patched.setattr(Buffer, "_release", interrupted)
            with pytest.raises(KeyboardInterrupt):
                buffer.free()
            buffer.free()
    assert len(released) == 1


def test_handles_may_outlive_the_handle_of_their_device():
    device, buffer, encoder = c_void_p(), c_void_p(), c_void_p()
    abi.lib.mtlq_device_open(b"cpu", None, byref(device))
    abi.lib.mtlq_buffer_create(device, 4096, byref(buffer))
    abi.lib.mtlq_encoder_create(device, byref(encoder))
    abi.lib.mtlq_device_close(device)
    contents = c_void_p()
    abi.lib.mtlq_buffer_contents(buffer, byref(contents))
    assert contents.value
    abi.lib.mtlq_encoder_free(encoder)
    abi.lib.mtlq_buffer_free(buffer)


def test_a_plan_keeps_what_it_names(device):
    rotation = Rotation(device, 4, 16)
    plan = rotation.plan(device, 2)
    memory = rotation.values.copy()
    for buffer in (rotation.x, rotation.y, rotation.indices, rotation.header):
        buffer.free()
    device.submit([plan])
    assert memory.shape == (4, 16)


def test_ids_are_never_used_again(device):
    seen = set()
    for _ in range(300):
        buffer, heap = device.buffer(4096), device.heap(PAGE, PAGE)
        assert not {buffer.id, heap.id} & seen
        seen |= {buffer.id, heap.id}
        buffer.free()
        heap.free()


def test_a_freed_id_is_unknown(device):
    sparse, heap = device.sparse(PAGE, PAGE), device.heap(PAGE, PAGE)
    ops = np.zeros(1, abi.MAP_OP)
    ops["buffer"], ops["heap"], ops["num_pages"] = sparse.id, heap.id, 1
    heap.free()
    with pytest.raises(DeviceError) as caught:
        device.map(ops)
    assert caught.value.status == abi.E_NOT_FOUND


def test_freed_objects_say_so(device):
    buffer = device.buffer(4096)
    buffer.free()
    with pytest.raises(ValueError, match="Buffer was freed"):
        buffer.array(np.uint8, (1,))
    other = Device.open(num_threads=1)
    other.close()
    with pytest.raises(ValueError, match="closed"):
        other.buffer(16)


def test_an_array_keeps_its_buffer(device):
    array = device.buffer(4096).array(np.float32, (16,))
    gc.collect()
    array[:] = 3
    assert array.sum() == 48


def test_an_array_must_fit(device):
    buffer = device.buffer(4096)
    assert buffer.array(np.float32, (4, 0)).shape == (4, 0)
    for shape, offset in (((1025,), 0), ((1024,), 4), ((1,), -4)):
        with pytest.raises(ValueError, match="4096"):
            buffer.array(np.float32, shape, offset)


def test_wrapped_memory_is_the_callers_memory(device, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 16)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = device.wrap(mapped)
    assert buffer.num_bytes == 4096
    assert np.array_equal(buffer.array(np.uint8, (256,), 256), np.arange(256))
    with pytest.raises(BufferError):
        mapped.close()
    buffer.free()
    mapped.close()
    array = np.zeros((3, 5), np.float32)
    view = device.wrap(array).array(np.float32, (3, 5))
    view[1, 2] = 7
    assert array[1, 2] == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_opening_and_closing_devices_leaves_nothing_behind():
    def use_device():
        with Device.open(num_threads=3) as device:
            objects = everything(device)
            device.submit([objects["plan"]])
            device.heap(PAGE, PAGE)

    def state():
        return (
            len(list(Path("/proc/self/task").iterdir())),
            len(list(Path("/proc/self/fd").iterdir())),
        )

    use_device()
    gc.collect()
    before, peak = state(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(50):
        use_device()
    assert state() == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 16 << 10  # KiB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ends AddressSanitizer")
def test_too_many_threads_for_the_system_is_a_clear_error():
    code = """
import resource
from pathlib import Path
from mtlqwen.device import Buffer, Device
from mtlqwen.errors import LimitError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + (1200 << 20)  # scratch of 1000 workers, and stacks for about a hundred
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    Device.open(num_threads=1000)
except LimitError as error:
    assert "of 999 threads" in str(error), error
else:
    raise SystemExit("opened")
Device.open(num_threads=4).close()
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
