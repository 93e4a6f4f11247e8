import json
from pathlib import Path

import pytest

from mtlqwen.convert import convert_gguf
from mtlqwen.device import Device
from mtlqwen.runner import Runner

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def golden():
    """Greedy tokens, margins and top-5 logits of transformers in float32 on 20 prompts."""
    return json.loads((DATA / "reference.json").read_text())["prompts"]


@pytest.fixture(scope="session")
def demo_f32(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "demo-f32.gguf"
    convert_gguf(DATA / "demo-bf16.gguf", path, "F32")
    return path


@pytest.fixture
def open_runner():
    """Opens runners that are closed, with their devices, at the end of the test."""
    yield from _runners()


@pytest.fixture(scope="module")
def open_module_runner():
    """The same for all tests of a module."""
    yield from _runners()


def _runners():
    opened = []

    def open_one(path, *, num_threads=2, isa=None, **options) -> Runner:
        device = Device.open("cpu", num_threads=num_threads, isa=isa)
        options = {"max_context": 2048, "max_slots": 4} | options
        runner = Runner(device, path, **options)
        opened.append((runner, device))
        return runner

    yield open_one
    for runner, device in reversed(opened):
        runner.close()
        device.close()
