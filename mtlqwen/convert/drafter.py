"""DFlash drafter checkpoints of Hugging Face: the plan of the GGUF made from one.

A drafter has a body only: embedding and head are the target's. Its norms are plain (no 1 + w).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ModelError
from .safetensors import Checkpoint
from .target import HFConfig
from .tensor_source import TensorSource, from_stored


def drafter_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `dflash.*` keys and the mask token.

    Keys may be nested in dflash_config or, in older files, at the top; the nested ones win. Taps
    are stored as in llama.cpp: block index + 1. `attention.causal` is written only if the config
    has it.
    """
    hf = HFConfig(checkpoint)
    nested = hf.get("dflash_config", {})
    if not isinstance(nested, dict):
        raise hf.error("dflash_config", nested, "an object")
    block_size = nested.get("block_size", hf.get("block_size"))
    mask = nested.get("mask_token_id", hf.get("mask_token_id"))
    taps = nested.get("target_layer_ids", hf.get("target_layer_ids"))
    if not isinstance(block_size, int) or block_size < 2:
        raise hf.error("block_size", block_size, "a whole number from 2")
    if not isinstance(mask, int) or mask < 0:
        raise hf.error("mask_token_id", mask, "a token id")
    are_indices = isinstance(taps, list) and all(isinstance(tap, int) for tap in taps)
    if not are_indices or not taps or taps != sorted(set(taps)):
        raise hf.error("target_layer_ids", taps, "ascending block indices of the target")
    num_layers, head_dim = hf.integer("num_hidden_layers"), hf.integer("head_dim")
    sliding = _sliding_layers(hf, num_layers)
    values: dict[str, Any] = {
        "block_count": num_layers,
        "context_length": hf.integer("max_position_embeddings"),
        "embedding_length": hf.integer("hidden_size"),
        "feed_forward_length": hf.integer("intermediate_size"),
        "attention.head_count": hf.integer("num_attention_heads"),
        "attention.head_count_kv": hf.integer("num_key_value_heads"),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps", 1e-6),
        "rope.freq_base": float(hf.rope.get("rope_theta", 1e7)),
        "rope.dimension_sections": np.array([head_dim // 2, 0, 0, 0], np.int32),
        "vocab_size": hf.integer("vocab_size"),
        "block_size": block_size,
        "target_layers": np.array(taps, np.int32) + np.int32(1),
    }
    if any(sliding):
        values["attention.sliding_window"] = hf.integer("sliding_window")
        values["attention.sliding_window_pattern"] = np.array(sliding)
    if hf.get("is_causal") is not None:
        values["attention.causal"] = bool(hf.get("is_causal"))
    metadata = {f"dflash.{key}": value for key, value in values.items()}
    return metadata | {"tokenizer.ggml.mask_token_id": mask}


def drafter_sources(checkpoint: Checkpoint, metadata: dict[str, Any]) -> dict[str, TensorSource]:
    """A source for every tensor of the GGUF, in file order; the checkpoint has no others."""
    sources = {}
    expected = _expected_tensors(metadata)
    prefix = "model." if "model.fc.weight" in checkpoint.tensors else ""
    for name, (hf_name, shape) in expected.items():
        tensor = checkpoint.tensors.get(prefix + hf_name)
        if tensor is None:
            raise ModelError(f"{checkpoint.directory}: tensor {prefix + hf_name!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{checkpoint.directory}: tensor {prefix + hf_name!r} is {list(tensor.shape)}, but"
                f" config.json makes it {list(shape)}"
            )
        sources[name] = from_stored(tensor, shape)
    known = {prefix + hf_name for hf_name, _ in expected.values()}
    for name in checkpoint.tensors.keys() - known:
        raise ModelError(
            f"{checkpoint.directory}: tensor {name!r} is no part of a DFlash drafter (version 1)"
        )
    return sources


def _sliding_layers(hf: HFConfig, num_layers: int) -> list[bool]:
    types = hf.get("layer_types", ["full_attention"] * num_layers)
    known = {"full_attention", "sliding_attention"}
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= known:
        raise hf.error("layer_types", types, f"{num_layers} times 'full_' or 'sliding_attention'")
    sliding = [type_ == "sliding_attention" for type_ in types]
    if any(sliding) and hf.get("use_sliding_window") is False:
        raise hf.error("use_sliding_window", False, "true, though layers are 'sliding_attention'")
    return sliding


def _expected_tensors(metadata: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF name -> name in the checkpoint and shape."""
    hidden = metadata["dflash.embedding_length"]
    ffn = metadata["dflash.feed_forward_length"]
    head_dim = metadata["dflash.attention.key_length"]
    query = metadata["dflash.attention.head_count"] * head_dim
    kv = metadata["dflash.attention.head_count_kv"] * head_dim
    num_taps = len(metadata["dflash.target_layers"])
    layer = {
        "attn_norm.weight": ("input_layernorm.weight", (hidden,)),
        "attn_q.weight": ("self_attn.q_proj.weight", (query, hidden)),
        "attn_k.weight": ("self_attn.k_proj.weight", (kv, hidden)),
        "attn_v.weight": ("self_attn.v_proj.weight", (kv, hidden)),
        "attn_q_norm.weight": ("self_attn.q_norm.weight", (head_dim,)),
        "attn_k_norm.weight": ("self_attn.k_norm.weight", (head_dim,)),
        "attn_output.weight": ("self_attn.o_proj.weight", (hidden, query)),
        "ffn_norm.weight": ("post_attention_layernorm.weight", (hidden,)),
        "ffn_gate.weight": ("mlp.gate_proj.weight", (ffn, hidden)),
        "ffn_up.weight": ("mlp.up_proj.weight", (ffn, hidden)),
        "ffn_down.weight": ("mlp.down_proj.weight", (hidden, ffn)),
    }
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "fc.weight": ("fc.weight", (hidden, num_taps * hidden)),
        "enc.output_norm.weight": ("hidden_norm.weight", (hidden,)),
    }
    for i in range(metadata["dflash.block_count"]):
        for name, (hf_name, shape) in layer.items():
            tensors[f"blk.{i}.{name}"] = (f"layers.{i}.{hf_name}", shape)
    tensors["output_norm.weight"] = ("norm.weight", (hidden,))
    return tensors
