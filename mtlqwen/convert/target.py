"""Qwen 3.5 checkpoints of Hugging Face: the plan of the GGUF made from one.

GGUF differs from the checkpoint in four ways: zero-centred norms hold 1 + w, ssm_a is -exp(A_log),
the convolution is a matrix, and the value heads of one key head, neighbours in the checkpoint, are
num_key_heads apart, so that value head j reads key head j % num_key_heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..config import ModelConfig, config_metadata, expected_tensors
from ..errors import ModelError
from .safetensors import Checkpoint, StoredTensor
from .tensor_source import TensorSource, from_stored

_PREFIXES = ("model.language_model.", "model.", "")
_IGNORED = ("mtp.", "visual.")

# GGUF name in a layer -> name in the checkpoint, and what changes.
_LAYER_TENSORS = {
    "attn_norm.weight": ("input_layernorm.weight", "centred"),
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "centred"),
    "attn_q.weight": ("self_attn.q_proj.weight", "same"),
    "attn_k.weight": ("self_attn.k_proj.weight", "same"),
    "attn_v.weight": ("self_attn.v_proj.weight", "same"),
    "attn_output.weight": ("self_attn.o_proj.weight", "same"),
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "centred"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "centred"),
    "attn_qkv.weight": ("linear_attn.in_proj_qkv.weight", "channel rows"),
    "attn_gate.weight": ("linear_attn.in_proj_z.weight", "value rows"),
    "ssm_beta.weight": ("linear_attn.in_proj_b.weight", "head rows"),
    "ssm_alpha.weight": ("linear_attn.in_proj_a.weight", "head rows"),
    "ssm_conv1d.weight": ("linear_attn.conv1d.weight", "channel rows"),
    "ssm_a": ("linear_attn.A_log", "decay"),
    "ssm_dt.bias": ("linear_attn.dt_bias", "head columns"),
    "ssm_norm.weight": ("linear_attn.norm.weight", "same"),
    "ssm_out.weight": ("linear_attn.out_proj.weight", "value columns"),
    "ffn_gate.weight": ("mlp.gate_proj.weight", "same"),
    "ffn_up.weight": ("mlp.up_proj.weight", "same"),
    "ffn_down.weight": ("mlp.down_proj.weight", "same"),
}
_TOP_TENSORS = {
    "token_embd.weight": ("embed_tokens.weight", "same"),
    "output_norm.weight": ("norm.weight", "centred"),
}


class HFConfig:
    """Typed access to config.json; the keys of `text_config` come before the outer ones."""

    def __init__(self, checkpoint: Checkpoint):
        outer = checkpoint.config
        inner = outer.get("text_config")
        self._values = outer | inner if isinstance(inner, dict) else outer
        self.path = checkpoint.directory / "config.json"

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(key, value, "a number above 0")
        return float(value)

    def require(self, key: str, expected: Any, default: Any = None) -> None:
        """Raise unless the key has the one value that the network is written for."""
        value = self.get(key, expected if default is None else default)
        if value != expected:
            raise self.error(key, value, f"{expected!r}, the only one supported")

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with the keys that older files have at the top level."""
        nested = self.get("rope_parameters") or self.get("rope_scaling") or {}
        if not isinstance(nested, dict):
            raise self.error("rope_parameters", nested, "an object")
        top = {key: self.get(key) for key in ("rope_theta", "partial_rotary_factor")}
        rope = {key: value for key, value in top.items() if value is not None} | nested
        for key in top.keys() & rope.keys():
            if isinstance(rope[key], bool) or not isinstance(rope[key], int | float):
                raise self.error(key, rope[key], "a number")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise self.error("rope_type", kind, "'default': scaled RoPE (YaRN...) is not supported")
        return rope

    def error(self, key: str, value: Any, expected: str) -> ModelError:
        return ModelError(f"{self.path}: {key} is {value!r}, not {expected}")


def target_metadata(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Any]:
    """The `qwen35.*` keys."""
    hf = HFConfig(checkpoint)
    sections = hf.rope.get("mrope_section", [11, 11, 10])
    if not isinstance(sections, list) or [type(size) for size in sections] != [int] * 3:
        raise hf.error("mrope_section", sections, "three whole numbers")
    return config_metadata(config, sections)


def target_config(checkpoint: Checkpoint, name: str) -> ModelConfig:
    """The shape of the network from config.json."""
    hf = HFConfig(checkpoint)
    if hf.get("quantization_config") or hf.get("quantization"):
        raise ModelError(
            f"{checkpoint.directory} is already quantised; convert the original BF16 checkpoint"
        )
    hf.require("attn_output_gate", True)
    hf.require("attention_bias", False)
    hf.require("hidden_act", "silu")
    hf.require("linear_conv_kernel_dim", 4)
    head_dim = hf.integer("head_dim", 256)
    rope = hf.rope
    key_heads, value_heads = (
        hf.integer("linear_num_key_heads"),
        hf.integer("linear_num_value_heads"),
    )
    key_dim, value_dim = hf.integer("linear_key_head_dim"), hf.integer("linear_value_head_dim")
    if value_heads % key_heads:
        raise hf.error(
            "linear_num_value_heads", value_heads, f"a multiple of {key_heads} key heads"
        )
    num_layers = hf.integer("num_hidden_layers")
    tied = hf.get("tie_word_embeddings", False)
    return ModelConfig(
        name=name,
        hidden_dim=hf.integer("hidden_size"),
        ffn_dim=hf.integer("intermediate_size"),
        num_layers=num_layers,
        layer_kinds=_layer_kinds(hf, num_layers),
        num_heads=hf.integer("num_attention_heads"),
        num_kv_heads=hf.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=int(head_dim * rope.get("partial_rotary_factor", 0.25)),
        rope_theta=float(rope.get("rope_theta", 1e7)),
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        num_channels=2 * key_heads * key_dim + value_heads * value_dim,
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        max_position=hf.integer("max_position_embeddings"),
        num_vocab_rows=hf.integer("vocab_size"),
        num_tokens=hf.integer("vocab_size"),
        tied=bool(tied),
    )


def target_sources(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, TensorSource]:
    """A source for every tensor of the GGUF, in file order; all others must be MTP or vision."""
    prefix = _find_prefix(checkpoint)
    changes = _changes(config)
    sources = {}
    used = set()
    for name, shape in expected_tensors(config).items():
        hf_name, change = _stored_name(name, prefix, checkpoint)
        tensor = checkpoint.tensors.get(hf_name)
        if tensor is None:
            raise ModelError(f"{checkpoint.directory}: tensor {hf_name!r} is missing")
        _check_shape(checkpoint, hf_name, tensor, shape)
        used.add(hf_name)
        sources[name] = changes[change](tensor, shape)
    for name in checkpoint.tensors.keys() - used:
        local = name.removeprefix(prefix).removeprefix("model.")
        if not local.startswith(_IGNORED) and not (config.tied and name.endswith("lm_head.weight")):
            raise ModelError(
                f"{checkpoint.directory}: tensor {name!r} is no part of a Qwen 3.5 dense model"
            )
    return sources


def _layer_kinds(hf: HFConfig, num_layers: int) -> tuple[Any, ...]:
    interval = hf.integer("full_attention_interval", 4)
    by_interval = [
        "linear_attention" if (i + 1) % interval else "full_attention" for i in range(num_layers)
    ]
    names = {"linear_attention": "delta", "full_attention": "attention"}
    types = hf.get("layer_types", by_interval)
    if not isinstance(types, list) or len(types) != num_layers or set(types) != names.keys():
        raise hf.error("layer_types", types, f"{num_layers} times 'linear_' or 'full_attention'")
    return tuple(names[type_] for type_ in types)


def _find_prefix(checkpoint: Checkpoint) -> str:
    for prefix in _PREFIXES:
        if f"{prefix}embed_tokens.weight" in checkpoint.tensors:
            return prefix
    if "language_model.model.embed_tokens.weight" in checkpoint.tensors:
        raise ModelError(
            f"{checkpoint.directory} is an MLX checkpoint; convert the original one of Hugging Face"
        )
    raise ModelError(f"{checkpoint.directory} has no tensor embed_tokens.weight: no whole model")


def _stored_name(name: str, prefix: str, checkpoint: Checkpoint) -> tuple[str, str]:
    if name == "output.weight":
        inside = f"{prefix}lm_head.weight"
        return inside if inside in checkpoint.tensors else "lm_head.weight", "same"
    if name in _TOP_TENSORS:
        local, change = _TOP_TENSORS[name]
        return prefix + local, change
    _, index, rest = name.split(".", 2)
    local, change = _LAYER_TENSORS[rest]
    return f"{prefix}layers.{index}.{local}", change


def _check_shape(
    checkpoint: Checkpoint, name: str, tensor: StoredTensor, shape: tuple[int, ...]
) -> None:
    expected = (shape[0], 1, shape[1]) if name.endswith("conv1d.weight") else shape
    if tensor.shape != expected:
        raise ModelError(
            f"{checkpoint.directory}: tensor {name!r} is {list(tensor.shape)}, but config.json"
            f" makes it {list(expected)}"
        )


def _decay(a_log: np.ndarray) -> np.ndarray:
    return -np.exp(a_log.astype(np.float64)).astype(np.float32)


def _changes(
    config: ModelConfig,
) -> dict[str, Callable[[StoredTensor, tuple[int, ...]], TensorSource]]:
    """What makes a GGUF tensor of a checkpoint's, by the words of the tables above."""
    repeats = config.num_value_heads // config.num_key_heads
    heads = np.arange(config.num_value_heads).reshape(config.num_key_heads, repeats).T.reshape(-1)
    values = (heads[:, None] * config.value_dim + np.arange(config.value_dim)).reshape(-1)
    num_qk = 2 * config.num_key_heads * config.key_dim
    channels = np.concatenate([np.arange(num_qk), num_qk + values])
    return {
        "same": from_stored,
        "centred": lambda t, shape: from_stored(t, shape, apply=lambda w: w + np.float32(1)),
        "decay": lambda t, shape: from_stored(t, shape, columns=heads, apply=_decay),
        "head rows": lambda t, shape: from_stored(t, shape, rows=heads),
        "head columns": lambda t, shape: from_stored(t, shape, columns=heads),
        "value rows": lambda t, shape: from_stored(t, shape, rows=values),
        "value columns": lambda t, shape: from_stored(t, shape, columns=values),
        "channel rows": lambda t, shape: from_stored(t, shape, rows=channels),
    }
