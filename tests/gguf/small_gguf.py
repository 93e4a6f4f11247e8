"""A whole Qwen 3.5 model of some 7 KB, and headers with any bytes in any place."""

import struct
from dataclasses import replace

import numpy as np

from mtlqwen.config import ModelConfig, config_metadata, expected_tensors
from mtlqwen.gguf import GGUFWriter, TensorType

U32, STRING, ARRAY = 4, 8, 9

CONFIG = ModelConfig(
    name="small",
    hidden_dim=8,
    ffn_dim=8,
    num_layers=2,
    layer_kinds=("delta", "attention"),
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rotary_dim=2,
    rope_theta=1e4,
    num_key_heads=1,
    num_value_heads=2,
    key_dim=4,
    value_dim=4,
    num_channels=16,
    norm_eps=1e-6,
    max_position=64,
    num_vocab_rows=6,
    num_tokens=5,
    tied=True,
)
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen35",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "é", "<|im_end|>", "[PAD5]"],
    "tokenizer.ggml.token_type": np.array([1, 1, 1, 1, 3, 5], np.int32),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 4,
}


def small_metadata(config=CONFIG):
    metadata = {"general.architecture": "qwen35", "general.name": config.name}
    return metadata | config_metadata(config, [1, 0, 0]) | TOKENIZER


def write_small(path, *, metadata=None, shapes=None, config=CONFIG, types=None):
    """A valid model, but for what is passed. Values of a tensor count up from its position."""
    metadata = small_metadata(config) if metadata is None else metadata
    shapes = expected_tensors(config) if shapes is None else shapes
    types = types or {}
    tensors = {name: (types.get(name, TensorType.F32), shape) for name, shape in shapes.items()}
    with GGUFWriter(path, metadata, tensors) as writer:
        for i, (name, (type_, shape)) in enumerate(tensors.items()):
            values = i + np.arange(np.prod(shape), dtype=np.float32)
            dtype = np.float16 if type_ is TensorType.F16 else np.float32
            writer.write(name, values.astype(dtype).view(np.uint8).reshape(-1))
    return path


def untied(config=CONFIG):
    return replace(config, tied=False)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def u32_key(name, value):
    return key(name, U32, struct.pack("<I", value))


ARCHITECTURE = key("general.architecture", STRING, text("qwen35"))


def tensor(name, dims, kind, offset, *, num_dims=None):
    num_dims = len(dims) if num_dims is None else num_dims
    packed = struct.pack(f"<I{len(dims)}Q", num_dims, *dims)
    return text(name) + packed + struct.pack("<IQ", kind, offset)


def header(keys=(), tensors=(), *, num_keys=None, num_tensors=None, version=3, data_bytes=0):
    """A file with the architecture and the given keys and tensors; counts may lie."""
    keys = [ARCHITECTURE, *keys]
    counts = [
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    ]
    raw = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*keys, *tensors])
    return raw + bytes(-len(raw) % 32) + bytes(data_bytes)
