"""Plans run in order on any number of workers; the device is left idle and whole afterwards."""

import os
import resource
import threading
import time

import numpy as np
import pytest
from child import run_python
from rotation import Rotation, make_plan

from mtlqwen import abi
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError


@pytest.mark.parametrize("num_threads", range(1, 9))
def test_dispatches_with_barriers_see_what_came_before(num_threads):
    with Device.open(num_threads=num_threads) as device:
        rotation = Rotation(device, num_rows=37, dim=16)
        plan = rotation.plan(device, num_steps=30)
        device.submit([plan, plan])
        expected = np.roll(np.arange(37), -60)[:, None]
        assert np.array_equal(rotation.values, np.broadcast_to(expected, (37, 16)))


def test_independent_dispatches_all_run(device):
    rotation = Rotation(device, num_rows=8, dim=16)
    outputs = [device.buffer(4 * 8 * 16) for _ in range(20)]
    operands = (rotation.header, rotation.indices, rotation.x)
    plan = make_plan(device, [("gather", rotation.args, (*operands, y), False) for y in outputs])
    device.submit([plan])
    for y in outputs:
        assert np.array_equal(y.array(np.float32, (8, 16)), np.roll(rotation.values, -1, axis=0))


def test_map_operations_come_before_the_plans_of_a_submission(device):
    page = device.info.sparse_page_bytes[0]
    rotation = Rotation(device, num_rows=8, dim=16)
    sparse, heap = device.sparse(page, page), device.heap(page, page)
    operands = (rotation.header, rotation.indices, rotation.x, sparse)
    plan = make_plan(device, [("gather", rotation.args, operands, False)])
    ops = np.zeros(1, abi.MAP_OP)
    ops["buffer"], ops["heap"], ops["num_pages"] = sparse.id, heap.id, 1
    device.submit([plan], ops)
    expected = np.roll(rotation.values, -1, axis=0)
    assert np.array_equal(heap.array(np.float32, (8, 16)), expected)


def test_several_threads_submit_in_turn(device):
    rotations = [Rotation(device, num_rows=16, dim=16) for _ in range(4)]
    plans = [rotation.plan(device, num_steps=8) for rotation in rotations]

    def submit(plan):
        for _ in range(20):
            device.wait(device.submit([plan]))

    threads = [threading.Thread(target=submit, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rotation in rotations:
        assert np.array_equal(rotation.values[:, 0], np.roll(np.arange(16), -160))


def test_tickets_ascend_and_the_last_64_have_a_time(device):
    plan = Rotation(device, num_rows=4, dim=16).plan(device, num_steps=2)
    tickets = [device.submit([plan]) for _ in range(70)]
    assert tickets == sorted(set(tickets))
    device.wait(tickets[0], timeout_s=0)
    assert device.ticket_time(tickets[-1]) > 0
    assert device.ticket_time(tickets[-64]) > 0
    for ticket in (0, tickets[0], tickets[-65], tickets[-1] + 1):
        with pytest.raises(DeviceError) as caught:
            device.ticket_time(ticket)
        assert caught.value.status == abi.E_NOT_FOUND
    with pytest.raises(DeviceError):
        device.wait(tickets[-1] + 1)


def test_a_submission_may_be_empty(device):
    device.wait(device.submit([]))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_profile_times_every_dispatch(num_threads):
    with Device.open(num_threads=num_threads, profile=True) as device:
        plan = Rotation(device, num_rows=64, dim=256).plan(device, num_steps=10)
        device.submit([plan])
        once = plan.times()
        device.submit([plan])
        assert once.shape == (10,)
        assert (once > 0).all()
        assert (plan.times() > once).all()


def test_times_without_profile_say_what_to_do(device):
    plan = Rotation(device, num_rows=4, dim=16).plan(device, num_steps=2)
    with pytest.raises(DeviceError, match="PROFILE"):
        plan.times()


def test_idle_workers_use_no_processor_time():
    with Device.open(num_threads=4) as device:
        device.submit([Rotation(device, num_rows=4, dim=16).plan(device, num_steps=2)])
        time.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.3)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.1  # three spinning workers would use 0.3 to 0.9 s


def test_results_do_not_depend_on_the_callers_denormal_mode(device):
    """Another library may have set flush-to-zero in the thread that submits."""
    rotation = Rotation(device, num_rows=2, dim=16)
    rotation.values[:] = 1e-41  # denormal
    device.submit([rotation.plan(device, num_steps=2)])
    assert (rotation.values == np.float32(1e-41)).all()


def test_default_number_of_threads_is_that_of_usable_cores():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity on this system")
    usable = os.sched_getaffinity(0)
    code = "from mtlqwen.device import Device; print(Device.open().info.num_threads)"
    pin = f"import os; os.sched_setaffinity(0, {{{min(usable)}}}); "
    assert run_python(pin + code).stdout == "1\n"
    with Device.open() as device:
        assert 1 <= device.info.num_threads <= len(usable)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_to_open_its_own_device():
    code = """
import os
from rotation import Rotation
from mtlqwen.device import Device
from mtlqwen.errors import DeviceError
device = Device.open(num_threads=3)
plan = Rotation(device, 4, 16).plan(device, 2)
device.submit([plan])
child = os.fork()
if child == 0:
    try:
        device.submit([plan])
    except DeviceError as error:
        assert "fork" in str(error)
        device.close()
        with Device.open(num_threads=2) as own:
            own.submit([Rotation(own, 4, 16).plan(own, 2)])
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
device.submit([plan])
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
