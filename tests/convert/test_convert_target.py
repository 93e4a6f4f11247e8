import json

import numpy as np
import pytest
from hf_directory import write_target

from mtlqwen.config import ModelConfig
from mtlqwen.convert import FILE_TYPES, convert, convert_hf
from mtlqwen.errors import ModelError
from mtlqwen.gguf import TensorType, open_gguf
from mtlqwen.quants import dequantize


def converted(directory, tmp_path, file_type="F32", **options):
    out = tmp_path / "out.gguf"
    convert(directory, out, file_type, **options)
    return open_gguf(out)


def values(gguf, name):
    info = gguf.tensors[name]
    return dequantize(gguf.array(name), info.type).reshape(info.shape)


def expected_values(hf, name, num_key_heads, num_value_heads, dim):
    """The rules of the format, one value head at a time."""
    repeats = num_value_heads // num_key_heads
    order = [
        (j % num_key_heads) * repeats + j // num_key_heads  # key head j % num_key_heads reads it
        for j in range(num_value_heads)
    ]
    local = name.partition("linear_attn.")[2]
    if name.endswith("norm.weight") and local != "norm.weight":
        return hf + 1
    if local == "A_log":
        return -np.exp(hf)[order]
    if local in ("in_proj_a.weight", "in_proj_b.weight", "dt_bias"):
        return hf[order]
    if local == "in_proj_z.weight":
        return np.concatenate([hf[h * dim : (h + 1) * dim] for h in order])
    if local == "out_proj.weight":
        return np.concatenate([hf[:, h * dim : (h + 1) * dim] for h in order], axis=1)
    if local in ("in_proj_qkv.weight", "conv1d.weight"):
        hf = hf.reshape(len(hf), -1)
        start = 2 * num_key_heads * dim
        heads = [hf[start + h * dim : start + (h + 1) * dim] for h in order]
        return np.concatenate([hf[:start], *heads])
    return hf


NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name):
    if not name.startswith("layers."):
        return NAMES[name]
    _, index, local = name.split(".", 2)
    return f"blk.{index}.{NAMES[local]}"


@pytest.mark.parametrize("num_value_heads", [2, 4, 6])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_follows_the_rules_of_the_format(tmp_path, num_value_heads, tied):
    directory, tensors = write_target(
        tmp_path / "hf", linear_num_value_heads=num_value_heads, tie_word_embeddings=tied
    )
    with converted(directory, tmp_path) as gguf:
        config = ModelConfig.from_gguf(gguf)
        assert (config.num_value_heads, config.tied) == (num_value_heads, tied)
        assert gguf.tensors.keys() == {gguf_name(name) for name in tensors}
        for name, stored in tensors.items():
            expected = expected_values(stored, name, 2, num_value_heads, 32)
            np.testing.assert_allclose(values(gguf, gguf_name(name)), expected, rtol=1e-6)


def test_the_config_is_that_of_the_directory(tmp_path):
    directory, _ = write_target(tmp_path / "hf")
    with converted(directory, tmp_path, name="A name") as gguf:
        config = ModelConfig.from_gguf(gguf)
    assert config.name == "A name"
    assert config.layer_kinds == ("delta", "attention")
    assert (config.hidden_dim, config.ffn_dim, config.head_dim) == (64, 32, 32)
    assert (config.rotary_dim, config.rope_theta, config.max_position) == (8, 1e7, 128)
    assert (config.num_vocab_rows, config.num_tokens) == (272, 263)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", ""])
@pytest.mark.parametrize("num_files", [1, 3])
def test_published_and_text_only_and_sharded_directories_give_the_same_file(
    tmp_path, prefix, num_files
):
    plain, _ = write_target(tmp_path / "plain")
    extra = {"mtp.fc.weight": np.zeros((4, 4)), "model.visual.patch_embed.weight": np.zeros((2, 2))}
    other, _ = write_target(tmp_path / "other", prefix=prefix, num_files=num_files, extra=extra)
    settings = json.loads((other / "config.json").read_text())
    if prefix == "model.language_model.":
        outer = {"model_type": "qwen3_5", "text_config": settings, "vocab_size": 1}
        (other / "config.json").write_text(json.dumps(outer))
    convert_hf(plain, tmp_path / "plain.gguf", "F32", name="same")
    convert_hf(other, tmp_path / "other.gguf", "F32", name="same")
    assert (tmp_path / "plain.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()


def test_bf16_weights_are_kept_bit_for_bit(tmp_path):
    directory, tensors = write_target(tmp_path / "hf", dtype="BF16")
    with converted(directory, tmp_path, "BF16") as gguf:
        stored = tensors["layers.1.self_attn.q_proj.weight"].view(np.uint32) >> 16
        assert gguf.tensors["blk.1.attn_q.weight"].type is TensorType.BF16
        np.testing.assert_array_equal(gguf.array("blk.1.attn_q.weight").view(np.uint16), stored)


def test_progress_ends_at_the_number_of_parameters(tmp_path):
    directory, tensors = write_target(tmp_path / "hf")
    calls = []
    convert(directory, tmp_path / "out.gguf", "Q8_0", progress=lambda *call: calls.append(call))
    total = sum(stored.size for stored in tensors.values())
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_older_configs_with_keys_at_the_top_level_are_read(tmp_path):
    directory, _ = write_target(tmp_path / "hf")
    settings = json.loads((directory / "config.json").read_text())
    del settings["rope_parameters"], settings["layer_types"]
    settings |= {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "full_attention_interval": 2}
    (directory / "config.json").write_text(json.dumps(settings))
    with converted(directory, tmp_path) as gguf:
        config = ModelConfig.from_gguf(gguf)
    assert (config.rope_theta, config.rotary_dim) == (1e6, 16)
    assert config.layer_kinds == ("delta", "attention")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_5_moe"}, "'qwen3_5_moe' model"),
        ({"quantization_config": {"quant_method": "fp8"}}, "already quantised"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"linear_num_value_heads": 3}, "a multiple of 2 key heads"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": 128}, "config.json makes it"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"tie_word_embeddings": False}, "'lm_head.weight' is missing"),
    ],
)
def test_a_config_that_is_not_supported_is_refused_by_key(tmp_path, changes, message):
    directory, _ = write_target(tmp_path / "hf")
    settings = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=message):
        converted(directory, tmp_path)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"model.layers.0.mlp.experts.0.weight": np.zeros((2, 2))}, "experts.0.weight' is no part"),
        ({"model.layers.1.self_attn.q_proj.bias": np.zeros(2)}, "q_proj.bias' is no part"),
        ({"model.layers.0.linear_attn.conv1d.weight": np.zeros((256, 4, 1))}, r"\[256, 4, 1\]"),
    ],
)
def test_tensors_of_another_model_are_refused_by_name(tmp_path, extra, message):
    directory, _ = write_target(tmp_path / "hf", extra=extra)
    with pytest.raises(ModelError, match=message):
        converted(directory, tmp_path)


def test_an_mlx_checkpoint_is_refused_by_name(tmp_path):
    directory, _ = write_target(tmp_path / "hf", prefix="language_model.model.")
    with pytest.raises(ModelError, match="MLX checkpoint"):
        converted(directory, tmp_path)


def test_weights_that_are_not_finite_are_refused_by_name_and_leave_nothing(tmp_path):
    bad = np.zeros((272, 64))
    bad[3, 4] = np.nan
    directory, _ = write_target(tmp_path / "hf", extra={"model.embed_tokens.weight": bad})
    with pytest.raises(ModelError, match=r"'token_embd\.weight' cannot be written"):
        converted(directory, tmp_path, "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_an_unknown_file_type_is_refused_with_the_known_ones(tmp_path):
    directory, _ = write_target(tmp_path / "hf")
    with pytest.raises(ModelError, match="'Q3_K_S'; choose one of F32, F16"):
        converted(directory, tmp_path, "Q3_K_S")


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_every_file_type_gives_a_model(tmp_path, file_type):
    directory, _ = write_target(tmp_path / "hf", hidden_size=256, vocab_size=272)
    with converted(directory, tmp_path, file_type) as gguf:
        assert gguf.metadata["general.file_type"] == FILE_TYPES[file_type]
        ModelConfig.from_gguf(gguf)
