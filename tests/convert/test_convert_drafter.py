import json

import numpy as np
import pytest
from hf_directory import (
    drafter_2_settings,
    drafter_settings,
    drafter_shapes,
    random_tensors,
    write_directory,
    write_tokenizer,
)

from mtlqwen.convert import convert
from mtlqwen.drafter import DrafterConfig
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf
from mtlqwen.quants import dequantize, quantize


def write_drafter(path, *, version=1, sizes=None, prefix="", extra=None, **changes):
    """`sizes` are changes of dflash_config; a key that is None is left out."""
    made = drafter_settings(**changes) if version == 1 else drafter_2_settings(**changes)
    settings = {k: v for k, v in made.items() if v is not None}
    if sizes:
        settings["dflash_config"] = settings["dflash_config"] | sizes
    tensors = random_tensors(drafter_shapes(settings)) | (extra or {})
    stored = {prefix + name: values for name, values in tensors.items()}
    return write_directory(path, settings, stored), tensors


def converted(tmp_path, file_type="F32", **options):
    directory, tensors = write_drafter(tmp_path / "hf", **options)
    convert(directory, tmp_path / "out.gguf", file_type)
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


SLIDING, FULL = "sliding_attention", "full_attention"
BLOCK_OF_16 = {"block_size": 16, "mask_token_id": 270, "target_layer_ids": [0, 1]}
NEITHER = {"layer_types": None, "sliding_window": None, "use_sliding_window": None}
EARLY = NEITHER | {
    "num_hidden_layers": 5,
    "dflash_config": None,
    **BLOCK_OF_16,
    "rope_parameters": None,
    "rope_theta": 1e7,
}
CURRENT = {
    "num_hidden_layers": 6,
    "layer_types": [SLIDING] * 5 + [FULL],
    "dflash_config": BLOCK_OF_16,
}


@pytest.mark.parametrize(
    ("options", "windows", "causal", "block_size", "rope_theta"),
    [
        (EARLY, [0] * 5, [False] * 5, 16, 1e7),
        (EARLY | {"is_causal": True}, [0] * 5, [True] * 5, 16, 1e7),
        (CURRENT, [16] * 5 + [0], [True] * 5 + [False], 16, 5e6),
        (CURRENT | {"is_causal": False}, [16] * 5 + [0], [False] * 6, 16, 5e6),
        (CURRENT | {"use_sliding_window": None}, [16] * 5 + [0], [True] * 5 + [False], 16, 5e6),
        ({"version": 2}, [16, 16], [False, False], 8, 5e6),
        ({"version": 2, "is_causal": None}, [16, 16], [True, True], 8, 5e6),
    ],
)
def test_every_published_kind_is_read_back_as_it_was_meant(
    tmp_path, options, windows, causal, block_size, rope_theta
):
    gguf, _ = converted(tmp_path, **options)
    config = DrafterConfig.from_gguf(gguf)
    assert (list(config.windows), list(config.causal)) == (windows, causal)
    assert (config.num_layers, config.block_size) == (len(windows), block_size)
    assert (config.rope_theta, config.taps, config.mask_id) == (rope_theta, (0, 1), 270)
    assert (config.conv_group, config.selector_rank) == (
        (16, 32) if "version" in options else (0, 0)
    )


def test_tensors_of_version_2_are_named_as_in_llama_cpp(tmp_path):
    gguf, tensors = converted(tmp_path, version=2)
    assert len(gguf.tensors) == len(tensors)
    for name, hf_name in {
        "blk.1.attn_conv_base": "layers.1.attention_conv.base_kernel",
        "blk.1.attn_conv_proj.weight": "layers.1.attention_conv.kernel_projection.weight",
        "blk.0.ffn_conv_base": "layers.0.mlp_conv.base_kernel",
        "blk.0.ffn_conv_proj.weight": "layers.0.mlp_conv.kernel_projection.weight",
        "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
        "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
        "selector_successor.weight": "candidate_selector.successor_codebook",
    }.items():
        assert gguf.tensors[name].shape == tensors[hf_name].shape
        stored = tensors[hf_name].reshape(-1, tensors[hf_name].shape[-1])
        np.testing.assert_array_equal(gguf.array(name).view(np.float32), stored)
    for key, value in {"conv_kernel_size": 2, "selector_top_k": 16, "selector_rank": 32}.items():
        assert gguf.metadata[f"dflash.{key}"] == value


@pytest.mark.parametrize(("file_type", "stored"), [("Q8_0", "BF16"), ("F16", "F16")])
def test_codebooks_and_taps_of_version_2_are_never_quantised(tmp_path, file_type, stored):
    gguf, tensors = converted(tmp_path, file_type, version=2)
    DrafterConfig.from_gguf(gguf)  # takes the types
    assert gguf.tensors["blk.0.attn_conv_base"].type is TensorType.F32
    assert gguf.tensors["selector_hidden.weight"].type is TensorType[file_type]
    book = gguf.tensors["selector_successor.weight"]
    assert book.type is TensorType[stored]
    values = dequantize(gguf.array("selector_successor.weight"), book.type)
    expected = tensors["candidate_selector.successor_codebook"]
    np.testing.assert_allclose(values, expected, rtol=2**-8)


def test_codebooks_that_another_program_quantised_are_read_after_conversion(tmp_path):
    exact, _ = converted(tmp_path, version=2)
    path = tmp_path / "quantised.gguf"
    metadata = {key: exact.encoded_value(key) for key in exact.metadata}
    types = {name: "Q8_0" if "selector" in name else "F32" for name in exact.tensors}
    tensors = {n: (TensorType[types[n]], info.shape) for n, info in exact.tensors.items()}
    with GGUFWriter(path, metadata, tensors) as writer:
        for name, (type_, _) in tensors.items():
            writer.write(name, quantize(exact.array(name).view(np.float32), type_))
    with open_gguf(path) as gguf, pytest.raises(ModelError, match="is Q8_0, but codebooks"):
        DrafterConfig.from_gguf(gguf)
    convert(path, tmp_path / "again.gguf", "Q8_0")
    with open_gguf(tmp_path / "again.gguf") as gguf:
        assert DrafterConfig.from_gguf(gguf) == DrafterConfig.from_gguf(exact)


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
            {"dflash_config": {"block_size": 65}},
            "block_size is 65, not a whole number from 2 to 64",
        ),
        (
            {"dflash_config": {"block_size": 8, "mask_token_id": 1, "target_layer_ids": [2, 1]}},
            "ascending block indices",
        ),
        ({"use_sliding_window": False}, "use_sliding_window is False"),
        ({"sliding_window": None}, "sliding_window is None"),
        (
            {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25, not 1",
        ),
        ({"rope_parameters": None}, "rope_theta is None, not a number"),
        ({"output_multiplier": 0.5}, "output_multiplier is 0.5, not 1"),
        ({"version": 2, "sizes": {"conv_kernel_size": 3}}, "conv_kernel_size is 3, not 2"),
        (
            {"version": 2, "sizes": {"conv_group_size": 24}},
            "conv_group_size is 24, not a multiple of 16",
        ),
        ({"version": 2, "sizes": {"conv_group_size": 48}}, "that divides the 64 channels"),
        (
            {"version": 2, "sizes": {"selector_rank": 40}},
            "selector_rank is 40, not a multiple of 16",
        ),
        ({"version": 2, "sizes": {"selector_top_k": 8}}, "selector_top_k is 8, not 16"),
        ({"version": 2, "sizes": {"selector_rank": None}}, "selector_rank is None"),
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
