import json

import numpy as np
import pytest
from hf_directory import (
    drafter_settings,
    drafter_shapes,
    random_tensors,
    write_directory,
    write_tokenizer,
)

from mtlqwen.convert import convert
from mtlqwen.errors import ModelError
from mtlqwen.gguf import open_gguf


def write_drafter(path, *, prefix="", extra=None, **changes):
    settings = {k: v for k, v in drafter_settings(**changes).items() if v is not None}
    tensors = random_tensors(drafter_shapes(settings)) | (extra or {})
    stored = {prefix + name: values for name, values in tensors.items()}
    return write_directory(path, settings, stored), tensors


def converted(tmp_path, **options):
    directory, tensors = write_drafter(tmp_path / "hf", **options)
    convert(directory, tmp_path / "out.gguf", "F32")
    return open_gguf(tmp_path / "out.gguf"), tensors


def test_keys_of_a_current_drafter(tmp_path):
    gguf, _ = converted(tmp_path)
    keys = {
        "block_count": 2,
        "block_size": 8,
        "vocab_size": 272,
        "attention.sliding_window": 16,
        "rope.freq_base": 5e6,
        "attention.key_length": 32,
    }
    for key, value in keys.items():
        assert gguf.metadata[f"dflash.{key}"] == value
    assert gguf.metadata["dflash.target_layers"].tolist() == [1, 2]
    assert gguf.metadata["dflash.attention.sliding_window_pattern"].tolist() == [True, False]
    assert gguf.metadata["tokenizer.ggml.mask_token_id"] == 270
    assert "dflash.attention.causal" not in gguf.metadata


def test_tensors_are_kept_as_they_are(tmp_path):
    gguf, tensors = converted(tmp_path)
    assert len(gguf.tensors) == len(tensors)
    for name, hf_name in {
        "fc.weight": "fc.weight",
        "enc.output_norm.weight": "hidden_norm.weight",
        "output_norm.weight": "norm.weight",
        "blk.1.attn_norm.weight": "layers.1.input_layernorm.weight",
        "blk.1.ffn_norm.weight": "layers.1.post_attention_layernorm.weight",
        "blk.0.attn_q_norm.weight": "layers.0.self_attn.q_norm.weight",
        "blk.0.attn_output.weight": "layers.0.self_attn.o_proj.weight",
        "blk.0.ffn_down.weight": "layers.0.mlp.down_proj.weight",
    }.items():
        stored = tensors[hf_name].reshape(-1, tensors[hf_name].shape[-1])
        np.testing.assert_array_equal(gguf.array(name).view(np.float32), stored)


def test_keys_of_an_early_drafter_lie_at_the_top(tmp_path):
    gguf, _ = converted(
        tmp_path,
        dflash_config=None,
        rope_parameters=None,
        layer_types=None,
        sliding_window=None,
        block_size=4,
        mask_token_id=7,
        target_layer_ids=[0, 1],
        rope_theta=1e6,
    )
    assert gguf.metadata["dflash.block_size"] == 4
    assert gguf.metadata["tokenizer.ggml.mask_token_id"] == 7
    assert gguf.metadata["dflash.rope.freq_base"] == 1e6
    assert "dflash.attention.sliding_window" not in gguf.metadata


def test_nested_keys_win(tmp_path):
    gguf, _ = converted(tmp_path, block_size=4, mask_token_id=7, rope_theta=1e6)
    assert gguf.metadata["dflash.block_size"] == 8
    assert gguf.metadata["tokenizer.ggml.mask_token_id"] == 270
    assert gguf.metadata["dflash.rope.freq_base"] == 5e6


def test_a_causal_flag_is_kept(tmp_path):
    gguf, _ = converted(tmp_path, is_causal=False)
    assert gguf.metadata["dflash.attention.causal"] is False


def test_names_with_the_prefix_of_a_model_are_read(tmp_path):
    gguf, tensors = converted(tmp_path, prefix="model.")
    assert len(gguf.tensors) == len(tensors)


def test_the_tokenizer_comes_from_the_target(tmp_path):
    directory, _ = write_drafter(tmp_path / "hf")
    target = tmp_path / "target"
    target.mkdir()
    write_tokenizer(target)
    convert(directory, tmp_path / "out.gguf", "F32", tokenizer=target)
    with open_gguf(tmp_path / "out.gguf") as gguf:
        assert len(gguf.metadata["tokenizer.ggml.tokens"]) == 272


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": {"block_size": 8, "mask_token_id": 1}}, "target_layer_ids is None"),
        ({"dflash_config": {"block_size": 1}}, "block_size is 1"),
        (
            {"dflash_config": {"block_size": 8, "mask_token_id": 1, "target_layer_ids": [2, 1]}},
            "ascending block indices",
        ),
        ({"use_sliding_window": False}, "use_sliding_window is False"),
        ({"sliding_window": None}, "sliding_window is None"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel.*of version 1"),
        ({"extra": {"layers.0.mlp_conv.base_kernel": np.zeros(2)}}, "mlp_conv.base_kernel' is no"),
        ({"extra": {"fc.weight": np.zeros((64, 64))}}, r"\[64, 64\].*\[64, 128\]"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        converted(tmp_path, **changes)


def test_a_missing_tensor_is_named(tmp_path):
    directory, tensors = write_drafter(tmp_path / "hf")
    del tensors["norm.weight"]
    settings = json.loads((directory / "config.json").read_text())
    write_directory(directory, settings, tensors)
    with pytest.raises(ModelError, match=r"'norm\.weight' is missing"):
        convert(directory, tmp_path / "out.gguf", "F32")
