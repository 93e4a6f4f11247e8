"""The shape of the network, read from the file and checked against its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .errors import ModelError
from .gguf import GGUF, TensorType
from .gguf_header import StringArray

LayerKind = Literal["attention", "delta"]
CONV_TAPS = 4

TOKEN_TYPE_UNUSED = 5
_MAX_LAYERS = 1024
_MAX_DIM = 1 << 24


@dataclass(frozen=True)
class ModelConfig:
    """A Qwen 3.5 dense text model: `layer_kinds[i]` says what layer i mixes tokens with."""

    name: str
    hidden_dim: int
    ffn_dim: int
    num_layers: int  # the MTP block of a file is not counted
    layer_kinds: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    num_channels: int  # of the convolution: q heads, k heads, v heads
    norm_eps: float
    max_position: int
    num_vocab_rows: int  # rows of the embedding table
    num_tokens: int  # ids below are real tokens, the rows from here on are padding
    tied: bool  # the head is the embedding table

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> ModelConfig:
        """Read and check the config; every tensor of the network is there with the right shape.

        Raises ModelError naming the key or tensor that is missing or wrong.
        """
        if gguf.architecture != "qwen35":
            raise ModelError(
                f"{gguf.path} is a DFlash drafter ({gguf.architecture!r}), which proposes tokens"
                " for a target model and cannot run alone; give the target as the model"
            )
        keys = Keys(gguf)
        num_layers = _num_trunk_layers(keys)
        kinds = _layer_kinds(keys, num_layers)
        table = gguf.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise ModelError(f"{gguf.path}: there is no embedding table (token_embd.weight)")
        heads = _head_counts(keys, kinds)
        delta = _delta_shape(keys)
        config = cls(
            name=_name(gguf),
            hidden_dim=keys.integer("embedding_length"),
            ffn_dim=keys.integer("feed_forward_length"),
            num_layers=num_layers,
            layer_kinds=kinds,
            **heads,
            rope_theta=_rope_theta(keys),
            **delta,
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            max_position=keys.integer("context_length", high=1 << 31),
            num_vocab_rows=table.shape[0],
            num_tokens=_num_tokens(gguf, table.shape[0]),
            tied="output.weight" not in gguf.tensors,
        )
        validate_tensors(gguf, config)
        return config


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and row-major shape of every tensor of the network."""
    hidden, ffn = config.hidden_dim, config.ffn_dim
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    values, value = config.num_value_heads, config.num_value_heads * config.value_dim
    mixers: dict[LayerKind, dict[str, tuple[int, ...]]] = {
        "attention": {
            "attn_q.weight": (2 * query, hidden),
            "attn_k.weight": (kv, hidden),
            "attn_v.weight": (kv, hidden),
            "attn_q_norm.weight": (config.head_dim,),
            "attn_k_norm.weight": (config.head_dim,),
            "attn_output.weight": (hidden, query),
        },
        "delta": {
            "attn_qkv.weight": (config.num_channels, hidden),
            "attn_gate.weight": (value, hidden),
            "ssm_alpha.weight": (values, hidden),
            "ssm_beta.weight": (values, hidden),
            "ssm_conv1d.weight": (config.num_channels, CONV_TAPS),
            "ssm_a": (values,),
            "ssm_dt.bias": (values,),
            "ssm_norm.weight": (config.value_dim,),
            "ssm_out.weight": (hidden, value),
        },
    }
    shared = {
        "post_attention_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.num_vocab_rows, hidden)}
    for i, kind in enumerate(config.layer_kinds):
        layer = {"attn_norm.weight": (hidden,)} | mixers[kind] | shared
        tensors |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    tensors["output_norm.weight"] = (hidden,)
    if not config.tied:
        tensors["output.weight"] = (config.num_vocab_rows, hidden)
    return tensors


def config_metadata(config: ModelConfig, rope_sections: Sequence[int]) -> dict[str, Any]:
    """The keys that from_gguf reads, for writing a file (tokenizer and `general.*` apart)."""
    inner = config.num_value_heads * config.value_dim
    values: dict[str, Any] = {
        "block_count": config.num_layers,
        "context_length": config.max_position,
        "embedding_length": config.hidden_dim,
        "feed_forward_length": config.ffn_dim,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.recurrent_layers": np.array([kind == "delta" for kind in config.layer_kinds]),
        "full_attention_interval": config.layer_kinds.index("attention") + 1,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.rotary_dim,
        "rope.dimension_sections": np.array([*rope_sections, 0], np.int32),
        "ssm.conv_kernel": CONV_TAPS,
        "ssm.state_size": config.key_dim,
        "ssm.group_count": config.num_key_heads,
        "ssm.time_step_rank": config.num_value_heads,
        "ssm.inner_size": inner,
    }
    return {f"qwen35.{key}": value for key, value in values.items()}


def is_always_f32(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor stays F32 in every file: the vectors and the convolution taps."""
    return len(shape) == 1 or name.endswith(("ssm_conv1d.weight", "_conv_base"))


def validate_tensors(gguf: GGUF, config: ModelConfig) -> None:
    """Raise ModelError unless the file holds the network's tensors and, MTP apart, no others."""
    expected = expected_tensors(config)
    if "blk.0.attn_norm.weight" not in gguf.tensors:
        raise ModelError(
            f"{gguf.path} has no blk.0.attn_norm.weight: it holds an MTP block or a part of a"
            " model, not a whole one; open the main model's file"
        )
    for name, shape in expected.items():
        info = gguf.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is missing; download or convert it again"
            )
        if info.shape != shape:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is {list(info.shape)}, but the config of the file"
                f" makes it {list(shape)}"
            )
        if is_always_f32(name, shape) and info.type is not TensorType.F32:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is {info.type.name}; norms, decays and convolution"
                " taps are F32 in every supported file: convert the model again"
            )
    for name in gguf.tensors.keys() - expected.keys():
        if not _in_mtp_block(name, config.num_layers):
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is no part of a Qwen 3.5 dense text model;"
                " running without it would give wrong results"
            )


def _in_mtp_block(name: str, num_layers: int) -> bool:
    prefix, _, rest = name.partition(".")
    index = rest.partition(".")[0]
    return prefix == "blk" and index.isdecimal() and int(index) >= num_layers


class Keys:
    """Typed access to the keys of an architecture."""

    def __init__(self, gguf: GGUF, architecture: str = "qwen35"):
        self._gguf = gguf
        self._architecture = architecture

    def integer(
        self, key: str, *, low: int = 1, high: int = _MAX_DIM, default: int | None = None
    ) -> int:
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"{_shown(value)}, not a whole number from {low} to {high}")
        return value

    def number(self, key: str) -> float:
        value = self.raw(key)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise self.error(key, f"{_shown(value)}, not a number above 0")
        return value

    def per_layer(self, key: str, kinds: tuple[LayerKind, ...]) -> int:
        """A count that may be stored once, or once per layer (where delta layers don't care)."""
        value = self.raw(key)
        if not isinstance(value, np.ndarray):
            return self.integer(key)
        if len(value) < len(kinds) or value.dtype.kind not in "iu":
            raise self.error(key, f"{_shown(value)}, not one count for each of {len(kinds)} layers")
        counts = {int(value[i]) for i, kind in enumerate(kinds) if kind == "attention"}
        if len(counts) > 1 or not all(0 < count <= _MAX_DIM for count in counts):
            raise self.error(
                key, f"{sorted(counts)}; all attention layers must have the same count"
            )
        return counts.pop()

    def raw(self, key: str, default: Any = None) -> Any:
        value = self._gguf.metadata.get(f"{self._architecture}.{key}", default)
        if value is None:
            raise ModelError(
                f"{self._gguf.path}: the key {self._architecture}.{key} is missing; convert the"
                " model again"
            )
        return value

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self._gguf.path}: {self._architecture}.{key} is {problem}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _name(gguf: GGUF) -> str:
    name = gguf.metadata.get("general.name")
    return name if isinstance(name, str) and name else gguf.path.stem


def _num_trunk_layers(keys: Keys) -> int:
    num_blocks = keys.integer("block_count", high=_MAX_LAYERS)
    num_mtp = keys.integer("nextn_predict_layers", low=0, high=_MAX_LAYERS, default=0)
    if num_mtp >= num_blocks:
        raise keys.error("nextn_predict_layers", f"{num_mtp} of {num_blocks} blocks: none is left")
    return num_blocks - num_mtp


def _layer_kinds(keys: Keys, num_layers: int) -> tuple[LayerKind, ...]:
    interval = keys.integer("full_attention_interval", high=_MAX_LAYERS, default=4)
    by_interval = np.arange(1, num_layers + 1) % interval != 0
    recurrent = keys.raw("attention.recurrent_layers", by_interval)
    if (
        not isinstance(recurrent, np.ndarray)
        or recurrent.dtype.kind not in "biu"
        or len(recurrent) < num_layers
    ):
        raise keys.error(
            "attention.recurrent_layers", f"{_shown(recurrent)}, not a flag for each layer"
        )
    kinds: tuple[LayerKind, ...] = tuple(
        "delta" if flag else "attention" for flag in recurrent[:num_layers]
    )
    if len(set(kinds)) != 2:
        raise keys.error(
            "full_attention_interval",
            f"{interval}, which makes all {num_layers} layers {kinds[0]!r}; a model has both kinds",
        )
    return kinds


def _head_counts(keys: Keys, kinds: tuple[LayerKind, ...]) -> dict[str, int]:
    head_dim = keys.integer("attention.key_length")
    value_length = keys.integer("attention.value_length")
    if value_length != head_dim:
        raise keys.error("attention.value_length", f"{value_length}, but key_length is {head_dim}")
    num_heads = keys.per_layer("attention.head_count", kinds)
    num_kv_heads = keys.per_layer("attention.head_count_kv", kinds)
    if num_heads % num_kv_heads:
        raise keys.error(
            "attention.head_count_kv", f"{num_kv_heads}: no divisor of {num_heads} heads"
        )
    rotary_dim = keys.integer("rope.dimension_count", high=head_dim)
    if rotary_dim % 2:
        raise keys.error("rope.dimension_count", f"{rotary_dim}, not an even number")
    return {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rotary_dim": rotary_dim,
    }


def _rope_theta(keys: Keys) -> float:
    scaling = keys.raw("rope.scaling.type", "none")
    if scaling != "none":
        raise keys.error("rope.scaling.type", f"{_shown(scaling)}; only unscaled RoPE is supported")
    return keys.number("rope.freq_base")


def _delta_shape(keys: Keys) -> dict[str, int]:
    taps = keys.integer("ssm.conv_kernel")
    if taps != CONV_TAPS:
        raise keys.error("ssm.conv_kernel", f"{taps}; the network has {CONV_TAPS} taps")
    key_dim = keys.integer("ssm.state_size")
    num_key_heads = keys.integer("ssm.group_count")
    num_value_heads = keys.integer("ssm.time_step_rank")
    inner = keys.integer("ssm.inner_size")
    if num_value_heads % num_key_heads:
        raise keys.error(
            "ssm.time_step_rank", f"{num_value_heads}: no multiple of {num_key_heads} key heads"
        )
    if inner % num_value_heads:
        raise keys.error("ssm.inner_size", f"{inner}: no multiple of {num_value_heads} value heads")
    value_dim = inner // num_value_heads
    return {
        "num_key_heads": num_key_heads,
        "num_value_heads": num_value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "num_channels": 2 * num_key_heads * key_dim + inner,
    }


def _num_tokens(gguf: GGUF, num_rows: int) -> int:
    """Number of ids up to the last one that is a token; unused ids follow as padding."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return num_rows
    if not isinstance(tokens, StringArray):
        raise ModelError(f"{gguf.path}: tokenizer.ggml.tokens is no array of strings")
    count = len(tokens)
    if count > num_rows:
        raise ModelError(
            f"{gguf.path}: the vocabulary has {count} tokens, but the embedding table has"
            f" {num_rows} rows"
        )
    types = gguf.metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, np.ndarray) and len(types) == count:
        count = int(np.flatnonzero(types != TOKEN_TYPE_UNUSED).max(initial=-1)) + 1
    if count == 0:
        raise ModelError(f"{gguf.path}: the vocabulary has no token in use")
    return count
