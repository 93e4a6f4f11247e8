"""Plans for several numbers of rows: which one runs, and the memory they share."""

from __future__ import annotations

from mtlqwen.device import Device
from mtlqwen.device_memory import DeviceMemory, RowPlans
from mtlqwen.plan import Launch, PlanBuilder

from .small_kernels import SOURCE

ROW_BYTES = 1024


def test_plans_of_one_pass_share_the_scratch_memory_of_the_largest(fake):
    with Device.open("metal") as device:
        memory, recorded = DeviceMemory(device), []

        def record(builder: PlanBuilder, max_rows: int) -> None:
            x = builder.value(0, 0, ROW_BYTES * max_rows)
            launch = Launch(device.pipeline("start", SOURCE), (1, 1, 1), 16)
            builder.launch([launch], bytes(4), [x], [x], "start")
            recorded.append(max_rows)

        plans = RowPlans(memory, 20, record)
        assert recorded == [1, 2, 3, 4, 8, 16, 20]
        assert memory.num_bytes == 20 * ROW_BYTES
        assert len({id(plans.of(rows)) for rows in range(21)}) == len(recorded)
        assert plans.of(5) is plans.of(8) is not plans.of(4)
        device.wait(device.submit([plans.of(20)]))
        plans.free()
        ways = RowPlans(memory, 20, record, record)
        assert recorded == [1, 2, 3, 4, 8, 16, 20] * 3
        assert memory.num_bytes == 2 * 20 * ROW_BYTES  # both ways over one scratch memory
        assert ways.of(5) is ways.of(8, way=0) is not ways.of(8, way=1)
        assert ways.of(20, way=1) is not ways.of(20)
        ways.free()
        memory.free()
