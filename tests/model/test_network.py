"""Random tiny models of every head grouping against the network in NumPy."""

import numpy as np
import pytest
from lone_sequence import LoneSequence
from qwen35_reference import Reference
from tiny_model import write_tiny_model

from mtlqwen.errors import ModelError
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 24, "num_heads": 8, "num_kv_heads": 8}, "attention heads of 24 values"),
        ({"head_dim": 528, "num_kv_heads": 4}, "attention heads of 528 values .* up to 512"),
        ({"num_heads": 194, "head_dim": 32}, "97 query heads to a key head"),
        ({"key_dim": 40, "num_channels": 672}, "key heads of 40 values"),
        (
            {"values_per_key": 1, "value_dim": 32, "num_channels": 576},
            "convolution of 576 channels",
        ),
        ({"values_per_key": 4, "value_dim": 48, "num_channels": 896}, "value heads of 48 values"),
    ],
)
def test_shapes_that_would_run_past_the_ends_of_buffers_are_refused(
    open_runner, tmp_path, changes, message
):
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, rotary_dim=16, **changes)
    with pytest.raises(ModelError, match=message):
        open_runner(path)


def load_weights(runner: Runner):
    gguf = runner.gguf
    return {
        name: dequantize(gguf.array(name), info.type).reshape(info.shape)
        for name, info in gguf.tensors.items()
    }
