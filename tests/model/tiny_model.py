"""Random models of a few layers, with every head grouping of the family."""

from dataclasses import replace

import numpy as np

from mtlqwen.config import ModelConfig, config_metadata, expected_tensors, is_always_f32
from mtlqwen.gguf import GGUFWriter, TensorType
from mtlqwen.quants import quantize


def write_tiny_model(
    path, *, values_per_key=2, tied=True, file_type="F32", num_layers=4, **changes
) -> None:
    """A model without a tokenizer; weights of a scale that keeps activations near one.

    `changes` are those of the config.
    """
    key_heads, num_heads = 2, 4
    config = ModelConfig(
        name="tiny",
        hidden_dim=256,
        ffn_dim=512,
        num_layers=num_layers,
        layer_kinds=("delta", "delta", "delta", "attention") * (num_layers // 4),
        num_heads=num_heads,
        num_kv_heads=2,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        num_key_heads=key_heads,
        num_value_heads=key_heads * values_per_key,
        key_dim=128,
        value_dim=128,
        num_channels=128 * key_heads * (2 + values_per_key),
        norm_eps=1e-6,
        max_position=4096,
        num_vocab_rows=512,
        num_tokens=512,
        tied=tied,
    )
    config = replace(config, **changes)
    rng = np.random.default_rng([values_per_key, tied])
    shapes = expected_tensors(config)
    matrix = TensorType[file_type]
    types = {n: TensorType.F32 if is_always_f32(n, s) else matrix for n, s in shapes.items()}
    metadata = {"general.architecture": "qwen35", "general.name": config.name}
    metadata |= config_metadata(config, [11, 11, 10])
    tensors = {name: (types[name], shape) for name, shape in shapes.items()}
    with GGUFWriter(path, metadata, tensors) as writer:
        for name, shape in shapes.items():
            values = _random(rng, name, shape).reshape(-1, shape[-1])
            writer.write(name, quantize(values, types[name]))


def _random(rng, name, shape):
    draw = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(draw)  # a decay is negative
    if name.endswith("ssm_dt.bias"):
        return draw
    if len(shape) == 1:
        return 1 + 0.1 * draw
    if name.endswith("ssm_conv1d.weight"):
        return 0.5 * draw
    return draw / np.sqrt(shape[-1])
