"""Memory that is reserved is not memory that is used."""

import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
from mtlqwen.config import config_metadata, expected_tensors, is_always_f32
from mtlqwen.device import Device
from mtlqwen.gguf import GGUFWriter, TensorType
from mtlqwen.runner import Runner
sys.path.append("bench")
from random_model import shape_of

def resident_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20

config = shape_of("9b")
shapes = expected_tensors(config)
types = {n: TensorType.F32 if is_always_f32(n, s) else TensorType.Q4_K for n, s in shapes.items()}
metadata = {"general.architecture": "qwen35", "general.name": "hollow"}
metadata |= config_metadata(config, [11, 11, 10])
writer = GGUFWriter(sys.argv[1], metadata, {n: (types[n], s) for n, s in shapes.items()})
with open(sys.argv[1], "wb") as file:  # the header, then a hole
    file.write(writer._header)
    file.truncate(writer.num_bytes)
before = resident_mb()
with Device.open(num_threads=2) as device:
    runner = Runner(device, sys.argv[1], max_slots=8, max_context=65536)
    reserved = runner.memory.num_bytes / 2**30
    print(reserved, resident_mb() - before)
    runner.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_eight_slots_of_65536_tokens_of_a_9b_shape_commit_no_memory(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "hollow.gguf")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    reserved_gb, resident_mb = map(float, output.split())
    assert reserved_gb > 16  # K/V of 8 x 65,536 tokens at 32 KiB each
    assert resident_mb < 64  # the table of rotary positions (16 MiB) and small change
