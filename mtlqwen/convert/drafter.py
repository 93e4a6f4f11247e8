"""DFlash drafter checkpoints of Hugging Face: the plan of the GGUF made from one.

A drafter has a body only: embedding and head are the target's. Its norms are plain (no 1 + w).
"""

from __future__ import annotations

from typing import Any

from ..arguments import is_integer
from ..drafter import (
    MAX_BLOCK,
    VERSION_2_KEYS,
    DrafterConfig,
    config_metadata,
    expected_tensors,
    version_2_problem,
)
from ..errors import ModelError
from .safetensors import Checkpoint
from .target import HFConfig
from .tensor_source import TensorSource, from_stored

# GGUF name -> name in the checkpoint, of layers without `layers.N.`
_NAMES = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
# Values of keys as if they were not there, the only ones the network is written for.
_ABSENT = {"input_embedding_scale": 1, "output_multiplier": 1, "final_logit_softcapping": 0}


class _DFlashKeys:
    """Keys nested in dflash_config or, in older files, at the top; the nested ones win."""

    def __init__(self, hf: HFConfig):
        self.hf = hf
        self._nested = hf.get("dflash_config", {})
        if not isinstance(self._nested, dict):
            raise hf.error("dflash_config", self._nested, "an object")

    def get(self, key: str) -> Any:
        value = self._nested.get(key)
        return self.hf.get(key) if value is None else value

    def integer(self, key: str, low: int, expected: str, high: int | None = None) -> int:
        value = self.get(key)
        if not is_integer(value, low, high):
            raise self.hf.error(key, value, expected)
        return value


def drafter_config(checkpoint: Checkpoint) -> DrafterConfig:
    """The shape of the drafter from config.json."""
    hf = HFConfig(checkpoint)
    dflash = _DFlashKeys(hf)
    found = {key: dflash.get(key) for key in _ABSENT}
    found["partial_rotary_factor"] = hf.rope.get("partial_rotary_factor")
    for key, expected in (_ABSENT | {"partial_rotary_factor": 1}).items():
        if found[key] not in (None, expected):
            raise hf.error(key, found[key], f"{expected}, the only one supported")
    hf.require("hidden_act", "silu")
    hf.require("attention_bias", False)
    num_layers, hidden_dim = hf.integer("num_hidden_layers"), hf.integer("hidden_size")
    sliding = _sliding_layers(hf, num_layers)
    window = hf.integer("sliding_window") if any(sliding) else 0
    is_causal = dflash.get("is_causal")
    rope_theta = hf.rope.get("rope_theta")
    if rope_theta is None:
        raise hf.error("rope_theta", None, "a number, at the top or in rope_parameters")
    conv_group, selector_rank = _version_2(checkpoint, dflash, hidden_dim)
    return DrafterConfig(
        hidden_dim=hidden_dim,
        ffn_dim=hf.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=hf.integer("num_attention_heads"),
        num_kv_heads=hf.integer("num_key_value_heads"),
        head_dim=hf.integer("head_dim"),
        rope_theta=float(rope_theta),
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        num_vocab_rows=hf.integer("vocab_size"),
        block_size=dflash.integer(
            "block_size", 2, f"a whole number from 2 to {MAX_BLOCK}", MAX_BLOCK
        ),
        mask_id=dflash.integer("mask_token_id", 0, "a token id"),
        taps=_taps(dflash),
        windows=tuple(window if slides else 0 for slides in sliding),
        causal=tuple(slides if is_causal is None else bool(is_causal) for slides in sliding),
        conv_group=conv_group,
        selector_rank=selector_rank,
    )


def drafter_metadata(checkpoint: Checkpoint, config: DrafterConfig) -> dict[str, Any]:
    """The `dflash.*` keys and the mask token."""
    context_length = HFConfig(checkpoint).integer("max_position_embeddings")
    return {"dflash.context_length": context_length} | config_metadata(config)


def drafter_sources(checkpoint: Checkpoint, config: DrafterConfig) -> dict[str, TensorSource]:
    """A source for every tensor of the GGUF, in file order; the checkpoint has no others."""
    sources = {}
    prefix = "model." if "model.fc.weight" in checkpoint.tensors else ""
    known = set()
    for name, shape in expected_tensors(config).items():
        stored_name = prefix + _stored_name(name)
        tensor = checkpoint.tensors.get(stored_name)
        if tensor is None:
            raise ModelError(f"{checkpoint.directory}: tensor {stored_name!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{checkpoint.directory}: tensor {stored_name!r} is {list(tensor.shape)}, but"
                f" config.json makes it {list(shape)}"
            )
        sources[name] = from_stored(tensor, shape)
        known.add(stored_name)
    for name in checkpoint.tensors.keys() - known:
        version = 2 if config.selector_rank else 1
        raise ModelError(
            f"{checkpoint.directory}: tensor {name!r} is no part of a DFlash drafter of version"
            f" {version}"
        )
    return sources


def _stored_name(name: str) -> str:
    if not name.startswith("blk."):
        return _NAMES[name]
    _, index, local = name.split(".", 2)
    return f"layers.{index}.{_NAMES[local]}"


def _taps(dflash: _DFlashKeys) -> tuple[int, ...]:
    taps = dflash.get("target_layer_ids")
    are_indices = isinstance(taps, list) and all(type(tap) is int and tap >= 0 for tap in taps)
    if not are_indices or not taps or taps != sorted(set(taps)):
        raise dflash.hf.error("target_layer_ids", taps, "ascending block indices of the target")
    return tuple(taps)


def _sliding_layers(hf: HFConfig, num_layers: int) -> list[bool]:
    types = hf.get("layer_types", ["full_attention"] * num_layers)
    known = {"full_attention", "sliding_attention"}
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= known:
        raise hf.error("layer_types", types, f"{num_layers} times 'full_' or 'sliding_attention'")
    sliding = [type_ == "sliding_attention" for type_ in types]
    if any(sliding) and hf.get("use_sliding_window") is False:
        raise hf.error("use_sliding_window", False, "true, though layers are 'sliding_attention'")
    return sliding


def _version_2(checkpoint: Checkpoint, dflash: _DFlashKeys, hidden_dim: int) -> tuple[int, int]:
    """Group of the convolutions and rank of the selector; 0 and 0 of a version 1."""
    if "'DFlash2DraftModel'" not in str(checkpoint.config.get("architectures")):
        return 0, 0
    sizes = {key: dflash.integer(key, 1, "a whole number above 0") for key in VERSION_2_KEYS}
    problem = version_2_problem(hidden_dim, **sizes)
    if problem:
        raise ModelError(f"{dflash.hf.path}: {problem}, which is not supported")
    return sizes["conv_group_size"], sizes["selector_rank"]
