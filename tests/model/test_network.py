"""Random tiny models of every head grouping against the network in NumPy."""

import numpy as np
import pytest
from lone_sequence import LoneSequence
from qwen35_reference import Reference
from tiny_model import write_tiny_model

from mtlqwen.quants import dequantize
from mtlqwen.runner import Runner


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("values_per_key", [1, 2, 3])
@pytest.mark.parametrize("file_type", ["F32", "Q8_0"])
def test_logits_equal_the_reference(open_runner, tmp_path, values_per_key, tied, file_type):
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, values_per_key=values_per_key, tied=tied, file_type=file_type)
    runner = open_runner(path)
    rng = np.random.default_rng(values_per_key)
    ids = rng.integers(0, runner.config.num_tokens, 170)
    sequence = LoneSequence(runner)
    logits = np.concatenate([sequence.feed(ids[:150]), sequence.feed(ids[150:], [1] * 20)])
    sequence.close()
    expected = Reference(runner.config, load_weights(runner)).forward(ids)
    scale = expected.std()
    error = np.abs(logits - expected)
    if file_type == "F32":
        assert error.max() < 1e-3 * scale
    else:  # activations are rounded to int8: 0.4 % of their largest neighbour, in every product
        assert np.sqrt((error**2).mean()) < 0.1 * scale


def load_weights(runner: Runner):
    gguf = runner.gguf
    return {
        name: dequantize(gguf.array(name), info.type).reshape(info.shape)
        for name, info in gguf.tensors.items()
    }
