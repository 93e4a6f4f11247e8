"""Every kernel that kernels/args.h describes exists on every instruction set of this machine."""

import re
from pathlib import Path

import pytest

from mtlqwen.device import Device
from mtlqwen.errors import DeviceError
from mtlqwen.gguf import TensorType

ARGS = (Path(__file__).parents[2] / "kernels" / "args.h").read_text()
OPERATIONS = re.findall(r"typedef struct mtlq_(\w+)_args \{", ARGS)
WEIGHT_TYPES = [tensor_type.name.lower() for tensor_type in TensorType]
SUFFIXES = {
    "embed": WEIGHT_TYPES,
    "linear": WEIGHT_TYPES,
    "select_path": ["f32", "f16", "bf16"],
}
KERNELS = [
    kernel
    for operation in OPERATIONS
    for kernel in [
        f"{operation}_{name}" if name else operation for name in SUFFIXES.get(operation, [""])
    ]
] + ["delta_chunk"]


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "neon"])
def test_every_kernel_exists(isa):
    try:
        device = Device.open(num_threads=1, isa=isa)
    except DeviceError as error:
        pytest.skip(str(error))
    with device:
        ids = {device.pipeline(kernel).id for kernel in KERNELS}
    assert len(ids) == len(KERNELS) == 2 * len(WEIGHT_TYPES) + 17
