"""Writes the Hugging Face directories of the target and the drafter.

    python -m tools.demo_model.export --data DATA --checkpoints CHECKPOINTS --out OUT

`mtlqwen convert` reads both: OUT/target and OUT/drafter.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tools.demo_model import checkpoint
from tools.demo_model.drafter import BLOCK, LAYER_TYPES, TAPS, WINDOW, DrafterConfig
from tools.demo_model.layers import EPSILON, ROPE_THETA
from tools.demo_model.model import TargetConfig
from tools.demo_model.vocabulary import (
    ADDED,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    PLAIN_ADDED,
    VOCABULARY,
)

LONGEST_CONTEXT = 16384
SHARED: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": END_OF_TURN,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": LONGEST_CONTEXT,
    "pad_token_id": END_OF_TEXT,
    "rms_norm_eps": EPSILON,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
GENERATION = {
    "do_sample": False,
    "eos_token_id": [END_OF_TURN, END_OF_TEXT],
    "pad_token_id": END_OF_TEXT,
}


def target_config(config: TargetConfig) -> dict[str, Any]:
    return {
        **SHARED,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attn_output_gate": True,
        "full_attention_interval": config.full_attention_interval,
        "head_dim": config.head_width,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "layer_types": [
            "full_attention" if config.is_full_attention(i) else "linear_attention"
            for i in range(config.layers)
        ],
        "linear_conv_kernel_dim": config.kernel,
        "linear_key_head_dim": config.linear_width,
        "linear_num_key_heads": config.linear_key_heads,
        "linear_num_value_heads": config.linear_value_heads,
        "linear_value_head_dim": config.linear_width,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "partial_rotary_factor": config.rotary / config.head_width,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": config.rotary / config.head_width,
            "rope_theta": int(ROPE_THETA),
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
    }


def drafter_config(config: DrafterConfig, target_layers: int) -> dict[str, Any]:
    return {
        **SHARED,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "dflash_config": {
            "block_size": BLOCK,
            "mask_token_id": MASK,
            "target_layer_ids": list(TAPS),
        },
        "head_dim": config.head_width,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "layer_types": list(LAYER_TYPES),
        "max_window_layers": len(LAYER_TYPES),
        "num_attention_heads": config.heads,
        "num_hidden_layers": len(LAYER_TYPES),
        "num_key_value_heads": config.kv_heads,
        "num_target_layers": target_layers,
        "rope_parameters": {"rope_theta": int(ROPE_THETA), "rope_type": "default"},
        "rope_theta": int(ROPE_THETA),
        "sliding_window": WINDOW,
        "tie_word_embeddings": False,
        "use_sliding_window": True,
    }


def tokenizer_config(added_tokens: list[dict[str, Any]], template: str) -> dict[str, Any]:
    decoder = {
        str(token["id"]): {
            "content": token["content"],
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token["special"],
        }
        for token in added_tokens
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": [t for t in ADDED[1:] if t not in PLAIN_ADDED],
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": LONGEST_CONTEXT,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def export(data: Path, checkpoints: Path, out: Path) -> None:
    target_folder, drafter_folder = out / "target", out / "drafter"
    for folder, name in ((target_folder, "target"), (drafter_folder, "drafter")):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkpoints / f"{name}.safetensors", folder / "model.safetensors")
    target = TargetConfig(**checkpoint.load_config(checkpoints, "target"))
    drafter = DrafterConfig(**checkpoint.load_config(checkpoints, "drafter"))
    _write_json(target_folder / "config.json", target_config(target))
    _write_json(target_folder / "generation_config.json", GENERATION)
    _write_json(drafter_folder / "config.json", drafter_config(drafter, target.layers))
    tokenizer = json.loads((data / "tokenizer.json").read_text(encoding="utf-8"))
    _write_json(target_folder / "tokenizer.json", tokenizer)
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    (target_folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    description = tokenizer_config(tokenizer["added_tokens"], template)
    _write_json(target_folder / "tokenizer_config.json", description)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.data, arguments.checkpoints, arguments.out)


if __name__ == "__main__":
    main()
