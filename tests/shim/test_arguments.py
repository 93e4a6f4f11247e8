"""No argument ends the process: each call returns a status, and a sentence with the numbers."""

import ctypes
import re
import struct
import threading
from ctypes import byref, c_uint64, c_void_p, sizeof

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation import Rotation

from mtlqwen import abi
from mtlqwen.abi import lib
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError, OutOfMemory

WORDS = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32 - 1, 2**32 - 2]))
LONGS = st.one_of(st.integers(0, 40), st.sampled_from([2**32, 2**63, 2**64 - 1]))


def raw(name: str):
    """The function without the conversion of statuses to exceptions."""
    function = ctypes.CDLL(lib._name)[f"mtlq_{name}"]
    function.argtypes, function.restype = abi._FALLIBLE[name], ctypes.c_int32
    return function


@pytest.mark.parametrize("name", sorted(set(abi._FALLIBLE) - {"heap_free"}))
def test_null_arguments_are_refused(name):
    function = raw(name)
    zeros = [None if hasattr(t, "contents") or t in _POINTERS else 0 for t in function.argtypes]
    assert function(*zeros) == abi.E_ARGUMENT
    assert lib.mtlq_last_error()


_POINTERS = (c_void_p, ctypes.c_char_p)


@pytest.mark.parametrize(
    "name", [name for name in abi._INFALLIBLE if name.endswith(("free", "close"))]
)
def test_freeing_null_does_nothing(name):
    getattr(lib, f"mtlq_{name}")(None)
    lib.mtlq_heap_free(None)


def test_ids_of_null_are_no_ids():
    for name in ("buffer_id", "heap_id", "pipeline_id"):
        assert getattr(lib, f"mtlq_{name}")(None) == abi.NO_ID


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"name": "cuda"}, abi.E_NOT_FOUND, 'no device "cuda"'),
        ({"name": ""}, abi.E_NOT_FOUND, "no device"),
        ({"isa": "sse9"}, abi.E_UNSUPPORTED, '"sse9": this machine runs .*portable'),
        ({"isa": ""}, abi.E_UNSUPPORTED, "portable"),
        ({"num_threads": 1025}, abi.E_ARGUMENT, "1025 threads, at most 1024"),
    ],
)
def test_wrong_devices_are_refused(arguments, status, message):
    with pytest.raises(DeviceError, match=message) as caught:
        Device.open(**arguments)
    assert caught.value.status == status


def test_negative_numbers_of_threads_are_refused():
    with pytest.raises(ValueError, match="-1"):
        Device.open(num_threads=-1)


@pytest.mark.parametrize(
    "fields", [{"struct_size": 8}, {"flags": 2}, {"reserved": 1}, {"struct_size": 0}]
)
def test_wrong_device_descriptions_are_refused(fields):
    values = {"struct_size": sizeof(abi.DeviceDesc)} | fields
    out = c_void_p(1)
    with pytest.raises(DeviceError) as caught:
        lib.mtlq_device_open(b"cpu", byref(abi.DeviceDesc(**values)), byref(out))
    assert caught.value.status == abi.E_ARGUMENT
    assert not out.value


def test_larger_descriptions_of_later_versions_are_taken(device):
    info = (abi.DeviceInfo * 2)()
    info[0].struct_size = 2 * sizeof(abi.DeviceInfo)
    lib.mtlq_device_get_info(device.handle, info)
    assert info[0].num_threads == 2
    assert bytes(info[1]) == bytes(sizeof(abi.DeviceInfo))


def test_info_fills_no_more_than_its_size(device):
    info = abi.DeviceInfo(struct_size=8, max_mappings=77)
    lib.mtlq_device_get_info(device.handle, byref(info))
    assert (info.num_threads, info.max_mappings) == (2, 77)


def test_every_instruction_set_of_the_message_opens():
    with pytest.raises(DeviceError) as caught:
        Device.open(isa="none")
    for isa in re.search(r"runs (.*)", str(caught.value)).group(1).split(", "):
        with Device.open(num_threads=1, isa=isa) as device:
            assert device.info.isa == isa
            assert device.pipeline("rmsnorm").id


def test_unknown_kernels_are_named(device):
    with pytest.raises(DeviceError, match="no_such_kernel") as caught:
        device.pipeline("no_such_kernel")
    assert caught.value.status == abi.E_NOT_FOUND
    with pytest.raises(DeviceError):
        device.pipeline("x" * 10_000)


def test_the_cpu_takes_no_source_and_no_constants(device):
    out = c_void_p()
    with pytest.raises(DeviceError) as caught:
        lib.mtlq_library_create(device.handle, b"kernel", 6, byref(out))
    assert caught.value.status == abi.E_UNSUPPORTED
    library, constants = c_void_p(), (abi.Constant * 1)()
    lib.mtlq_library_create(device.handle, None, 0, byref(library))
    with pytest.raises(DeviceError) as caught:
        lib.mtlq_pipeline_create(library, b"rmsnorm", constants, 1, byref(out))
    assert caught.value.status == abi.E_UNSUPPORTED
    lib.mtlq_library_free(library)


@pytest.mark.parametrize("num_bytes", [0, 2**46 + 1, 2**64 - 1])
def test_wrong_buffer_sizes_are_refused(device, num_bytes):
    with pytest.raises(DeviceError, match=str(num_bytes)):
        device.buffer(num_bytes)


def test_memory_that_is_not_there_is_out_of_memory(device):
    with pytest.raises(OutOfMemory, match=str(2**45)):
        [device.buffer(2**45) for _ in range(10)]  # of 128 TiB of addresses


def records(device: Device):
    """The dispatches, bindings and arguments of a plan that is right."""
    rotation = Rotation(device, 4, 16)
    dispatches = np.zeros(1, abi.DISPATCH)
    dispatches["pipeline"] = device.pipeline("gather").id
    dispatches["grid_buffer"] = abi.NO_ID
    dispatches["num_bindings"], dispatches["args_bytes"] = 4, 8
    bindings = np.zeros(4, abi.BINDING)
    buffers = rotation.header, rotation.indices, rotation.x, rotation.y
    bindings["buffer"] = [buffer.id for buffer in buffers]
    return dispatches, bindings, struct.pack("=IIQ", 16, 0, 0), buffers


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("pipeline", 10**6, abi.E_NOT_FOUND),
        ("flags", 2, abi.E_ARGUMENT),
        ("reserved", 1, abi.E_ARGUMENT),
        ("grid_buffer", 10**6, abi.E_NOT_FOUND),
        ("first_binding", 1, abi.E_ARGUMENT),
        ("first_binding", 2**32 - 1, abi.E_ARGUMENT),
        ("num_bindings", 3, abi.E_ARGUMENT),
        ("num_bindings", 2**32 - 1, abi.E_ARGUMENT),
        ("args_offset", 8, abi.E_ARGUMENT),
        ("args_offset", 16, abi.E_ARGUMENT),
        ("args_offset", 2**32 - 16, abi.E_ARGUMENT),
        ("args_bytes", 4, abi.E_ARGUMENT),
        ("args_bytes", 2**32 - 1, abi.E_ARGUMENT),
    ],
)
def test_a_wrong_dispatch_is_refused(device, field, value, status):
    dispatches, bindings, args, _buffers = records(device)
    dispatches[field] = value
    with pytest.raises(DeviceError, match="dispatch 0") as caught:
        device.plan(dispatches, bindings, args)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("buffer", 10**6, abi.E_NOT_FOUND),
        ("buffer", 0, abi.E_NOT_FOUND),
        ("reserved", 1, abi.E_ARGUMENT),
        ("offset_bytes", 2**40, abi.E_ARGUMENT),
        ("offset_bytes", 2**64 - 1, abi.E_ARGUMENT),
    ],
)
def test_a_wrong_binding_is_refused(device, field, value, status):
    dispatches, bindings, args, _buffers = records(device)
    bindings[field][2] = value
    with pytest.raises(DeviceError, match="binding 2") as caught:
        device.plan(dispatches, bindings, args)
    assert caught.value.status == status


def test_an_id_of_another_kind_is_not_found(device):
    dispatches, bindings, args, _buffers = records(device)
    bindings["buffer"][1] = device.pipeline("gather").id
    with pytest.raises(DeviceError, match="no buffer"):
        device.plan(dispatches, bindings, args)


@pytest.mark.parametrize("offset", [0, 52, 53, 64, 2**32 - 4])
def test_a_grid_buffer_must_hold_three_words(device, offset):
    dispatches, bindings, args, buffers = records(device)
    dispatches["grid_buffer"], dispatches["grid_offset_bytes"] = buffers[0].id, offset
    if offset <= 64 - 12:
        device.plan(dispatches, bindings, args)
        return
    with pytest.raises(DeviceError, match="grid offset"):
        device.plan(dispatches, bindings, args)


def test_a_plan_without_dispatches_is_refused(device):
    _, bindings, args, _buffers = records(device)
    with pytest.raises(DeviceError, match="no dispatches"):
        device.plan(np.zeros(0, abi.DISPATCH), bindings, args)


def test_records_of_another_layout_are_refused(device):
    dispatches, bindings, args, _buffers = records(device)
    with pytest.raises(TypeError, match="vector"):
        device.plan(bindings, dispatches, args)
    with pytest.raises(TypeError, match="vector"):
        device.map(np.zeros(5, np.uint8))


def test_a_plan_of_another_device_is_refused(device):
    dispatches, bindings, args, _buffers = records(device)
    plan = device.plan(dispatches, bindings, args)
    with (
        Device.open(num_threads=1) as other,
        pytest.raises(DeviceError, match="another device"),
    ):
        other.submit([plan])
    handles = (c_void_p * 2)(plan.handle.value, None)
    with pytest.raises(DeviceError, match="plan 1 is NULL"):
        lib.mtlq_submit(device.handle, handles, 2, None, 0, byref(c_uint64()))


@settings(max_examples=100)
@given(data=st.data())
def test_random_records_give_a_plan_or_an_error(data):
    with Device.open(num_threads=1) as device:
        dispatches, bindings, args, buffers = records(device)
        for _ in range(data.draw(st.integers(1, 4))):
            target = data.draw(st.sampled_from([dispatches, bindings]))
            field = data.draw(st.sampled_from(target.dtype.names))
            values = LONGS if target.dtype[field].base.itemsize == 8 else WORDS
            target[field][data.draw(st.integers(0, len(target) - 1))] = data.draw(values)
        try:
            plan = device.plan(dispatches, bindings, args)
        except DeviceError as error:
            assert error.status in (abi.E_ARGUMENT, abi.E_NOT_FOUND)
            assert str(error)
        else:
            assert plan.num_dispatches == 1
        assert buffers[0].num_bytes == 64


@settings(max_examples=60)
@given(st.lists(st.tuples(*[WORDS] * 4, *[LONGS] * 3), max_size=6))
def test_random_map_operations_apply_or_are_refused(operations):
    with Device.open(num_threads=1) as device:
        sparse, heap = device.sparse(32 << 16, 1 << 16), device.heap(8 << 16, 1 << 16)
        ops = np.array(operations, abi.MAP_OP)
        ops["kind"] %= 3
        ops["buffer"] = np.where(ops["buffer"] % 4, sparse.id, ops["buffer"])
        ops["heap"] = np.where(ops["kind"] == abi.UNMAP, abi.NO_ID, ops["heap"])
        ops["heap"] = np.where(
            (ops["kind"] == abi.MAP) & (ops["heap"] % 4 > 0), heap.id, ops["heap"]
        )
        try:
            device.map(ops)
        except DeviceError as error:
            assert error.status in (abi.E_ARGUMENT, abi.E_NOT_FOUND)
            assert "map operation" in str(error)


def test_the_encoder_refuses_what_a_plan_refuses(device):
    dispatches, bindings, args, _buffers = records(device)
    encoder, ticket = c_void_p(), c_uint64()
    lib.mtlq_encoder_create(device.handle, byref(encoder))
    lib.mtlq_encoder_commit(encoder, byref(ticket))
    assert ticket.value == 1
    lib.mtlq_encoder_dispatch(encoder, dispatches.ctypes.data, bindings.ctypes.data, args)
    lib.mtlq_encoder_commit(encoder, byref(ticket))
    assert ticket.value == 2
    for count, with_bindings in ((2**32 - 1, True), (4, False)):
        dispatches["num_bindings"] = count
        with pytest.raises(DeviceError):
            lib.mtlq_encoder_dispatch(
                encoder,
                dispatches.ctypes.data,
                bindings.ctypes.data if with_bindings else None,
                args,
            )
    dispatches["num_bindings"] = 3
    lib.mtlq_encoder_dispatch(encoder, dispatches.ctypes.data, bindings.ctypes.data, args)
    with pytest.raises(DeviceError, match="3 bindings"):
        lib.mtlq_encoder_commit(encoder, byref(ticket))
    assert ticket.value == 0
    lib.mtlq_encoder_free(encoder)


def test_the_last_error_is_that_of_the_thread(device):
    said = {}

    def fail(name):
        with pytest.raises(DeviceError):
            device.pipeline(name)
        barrier.wait()
        said[name] = lib.mtlq_last_error().decode()

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=fail, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert '"first"' in said["first"]
    assert '"second"' in said["second"]
