"""Small Hugging Face directories with random weights: targets, drafters, tokenizers."""

import json
import struct

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from mtlqwen.convert.tokenizer import QWEN35_SPLIT

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def target_settings(**changes):
    """A text_config with 2 key heads and 4 value heads, 2 layers."""
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attn_output_gate": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128,
        "vocab_size": 272,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
        },
    } | changes


def target_shapes(c):
    """Names (without prefix) and shapes of a checkpoint."""
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = c["linear_num_value_heads"]
    value = values * c["linear_value_head_dim"]
    query, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    shapes = {"embed_tokens.weight": (c["vocab_size"], hidden), "norm.weight": (hidden,)}
    delta = {
        "linear_attn.in_proj_qkv.weight": (2 * key + value, hidden),
        "linear_attn.in_proj_z.weight": (value, hidden),
        "linear_attn.in_proj_b.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (values, hidden),
        "linear_attn.conv1d.weight": (2 * key + value, 1, 4),
        "linear_attn.dt_bias": (values,),
        "linear_attn.A_log": (values,),
        "linear_attn.norm.weight": (c["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, value),
    }
    attention = {
        "self_attn.q_proj.weight": (2 * query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }
    for i, kind in enumerate(c["layer_types"]):
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
        } | (attention if kind == "full_attention" else delta)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def drafter_settings(**changes):
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "use_sliding_window": True,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
        "vocab_size": 272,
        "dflash_config": {"block_size": 8, "mask_token_id": 270, "target_layer_ids": [0, 1]},
    } | changes


def drafter_2_settings(**changes):
    """DFlash 2: every layer slides and none is causal in the block."""
    return (
        drafter_settings(
            architectures=["DFlash2DraftModel"],
            layer_types=["sliding_attention"] * 2,
            is_causal=False,
            dflash_config={
                "block_size": 8,
                "mask_token_id": 270,
                "target_layer_ids": [0, 1],
                "conv_kernel_size": 2,
                "conv_group_size": 16,
                "selector_rank": 32,
                "selector_top_k": 16,
            },
        )
        | changes
    )


def drafter_shapes(c):
    """Names and shapes of a checkpoint with two taps; also those of DFlash 2."""
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    query, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    is_2 = c["architectures"] == ["DFlash2DraftModel"]
    shapes = {"fc.weight": (hidden, 2 * hidden)}
    shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
        }
        if is_2:
            for module in ("attention_conv", "mlp_conv"):
                layer[f"{module}.base_kernel"] = (2, 2, hidden)
                layer[f"{module}.kernel_projection.weight"] = (4 * hidden // 16, hidden)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if is_2:
        shapes["candidate_selector.hidden_projection.weight"] = (32, hidden)
        for book in ("predecessor", "successor"):
            shapes[f"candidate_selector.{book}_codebook"] = (c["vocab_size"], 32)
    return shapes


def random_tensors(shapes):
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_safetensors(path, tensors, dtype="F32"):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4")
        if dtype == "BF16":  # cut, so that the file holds the upper halves exactly
            raw = (raw.view("<u4") >> 16).astype("<u2")
        raw = raw.astype(DTYPES[dtype]).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_directory(path, settings, tensors, *, dtype="F32", num_files=1):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    if num_files == 1:
        write_safetensors(path / "model.safetensors", tensors, dtype)
        return path
    weight_map = {}
    for i in range(num_files):
        name = f"model-{i + 1:05d}-of-{num_files:05d}.safetensors"
        part = dict(list(tensors.items())[i::num_files])
        write_safetensors(path / name, part, dtype)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def write_target(path, *, prefix="model.", dtype="F32", num_files=1, extra=None, **changes):
    """A target with a tokenizer; returns (directory, tensors without prefix)."""
    settings = target_settings(**changes)
    tensors = random_tensors(target_shapes(settings))
    stored = {prefix + name: values for name, values in tensors.items()}
    if not settings["tie_word_embeddings"]:
        head = random_tensors({"lm_head.weight": tensors["embed_tokens.weight"].shape})
        tensors |= head
        stored |= head
    write_directory(path, settings, stored | (extra or {}), dtype=dtype, num_files=num_files)
    write_tokenizer(path)
    return path, tensors


def write_tokenizer(path, *, split=QWEN35_SPLIT, normalizer=normalizers.NFC):
    """256 bytes, two merges, then special and user-defined tokens."""
    letters = sorted(ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("t", "h"), ("th", "e")]))
    tokenizer.normalizer = normalizer()
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(split), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens(
        [AddedToken(text, special=False) for text in ("<think>", "</think>", "<|fim_pad|>")]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "eos_token": "<|im_end|>",
        "pad_token": {"content": "<|endoftext|>"},
        "bos_token": None,
        "add_bos_token": False,
        "chat_template": "from tokenizer_config",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
