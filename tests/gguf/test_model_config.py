from dataclasses import replace

import numpy as np
import pytest
from small_gguf import CONFIG, small_metadata, untied, write_small

from mtlqwen.config import ModelConfig, expected_tensors
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf


def read(path):
    with open_gguf(path) as gguf:
        return ModelConfig.from_gguf(gguf)


def changed(tmp_path, **keys):
    """The small model with keys of `qwen35.` changed, or removed where the value is None."""
    metadata = small_metadata() | {f"qwen35.{name}": value for name, value in keys.items()}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return write_small(tmp_path / "model.gguf", metadata=metadata)


def test_the_config_comes_from_the_file(tmp_path):
    assert read(write_small(tmp_path / "m.gguf")) == replace(
        CONFIG, norm_eps=float(np.float32(1e-6))
    )


def test_a_separate_head_makes_it_untied(tmp_path):
    assert not read(write_small(tmp_path / "m.gguf", config=untied())).tied


def test_flags_for_each_layer_win_over_the_interval(tmp_path):
    flags = {"attention.recurrent_layers": np.array([True, False]), "full_attention_interval": 7}
    assert read(changed(tmp_path, **flags)).layer_kinds == ("delta", "attention")


def test_the_interval_is_enough(tmp_path):
    path = changed(tmp_path, **{"attention.recurrent_layers": None})
    assert read(path).layer_kinds == ("delta", "attention")


def test_counts_may_be_stored_per_layer(tmp_path):
    counts = {"attention.head_count_kv": np.array([0, 1], np.int32)}
    assert read(changed(tmp_path, **counts)).num_kv_heads == 1


def test_the_mtp_block_is_skipped(tmp_path):
    shapes = expected_tensors(CONFIG)
    shapes |= {"blk.2.nextn.eh_proj.weight": (8, 16), "blk.2.attn_norm.weight": (8,)}
    keys = {"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
    path = write_small(tmp_path / "m.gguf", metadata=small_metadata() | keys, shapes=shapes)
    assert read(path).num_layers == 2


def test_padding_at_the_end_of_the_vocabulary_is_no_token(tmp_path):
    unused_inside = {"tokenizer.ggml.token_type": np.array([1, 5, 1, 3, 5, 5], np.int32)}
    path = write_small(tmp_path / "m.gguf", metadata=small_metadata() | unused_inside)
    config = read(path)
    assert (config.num_tokens, config.num_vocab_rows) == (4, 6)


def test_without_a_tokenizer_every_row_is_a_token(tmp_path):
    metadata = {k: v for k, v in small_metadata().items() if not k.startswith("tokenizer.")}
    assert read(write_small(tmp_path / "m.gguf", metadata=metadata)).num_tokens == 6


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("embedding_length", None, "qwen35.embedding_length is missing"),
        ("embedding_length", "8", "qwen35.embedding_length is '8'"),
        ("embedding_length", True, "qwen35.embedding_length is True"),
        ("block_count", 0, "block_count is 0"),
        ("block_count", 2**32 - 1, "block_count is 4294967295"),
        ("nextn_predict_layers", 2, "none is left"),
        ("attention.head_count_kv", 3, "no divisor of 2 heads"),
        ("attention.head_count_kv", np.array([1], np.int32), "for each of 2 layers"),
        ("attention.head_count_kv", np.array([1, -1], np.int32), r"\[-1\]"),
        ("attention.value_length", 8, "value_length is 8, but key_length is 4"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "rms_epsilon is nan"),
        ("attention.recurrent_layers", np.array([True, True]), "a model has both kinds"),
        ("attention.recurrent_layers", np.array([True]), "a flag for each layer"),
        ("full_attention_interval", 0, "full_attention_interval is 0"),
        ("rope.freq_base", 0.0, "freq_base is 0.0"),
        ("rope.dimension_count", 3, "not an even number"),
        ("rope.dimension_count", 6, "from 1 to 4"),
        ("rope.scaling.type", "yarn", "rope.scaling.type is 'yarn'"),
        ("ssm.conv_kernel", 3, "ssm.conv_kernel is 3"),
        ("ssm.time_step_rank", 3, "no multiple of 3 value heads"),
        ("ssm.group_count", 4, "no multiple of 4 key heads"),
    ],
)
def test_a_key_that_is_wrong_is_named_with_its_value(tmp_path, key, value, message):
    with pytest.raises(ModelError, match=message):
        read(changed(tmp_path, **{key: value}))


def with_shapes(tmp_path, **changes):
    shapes = expected_tensors(CONFIG) | changes
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    return write_small(tmp_path / "m.gguf", shapes=shapes)


@pytest.mark.parametrize("name", sorted(expected_tensors(CONFIG)))
def test_a_missing_tensor_is_named(tmp_path, name):
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        read(with_shapes(tmp_path, **{name: None}))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.ssm_out.weight", (8, 4)),
        ("blk.1.attn_q.weight", (8, 8)),
        ("output_norm.weight", (4,)),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(tmp_path, name, shape):
    expected = list(expected_tensors(CONFIG)[name])
    with pytest.raises(ModelError) as caught:
        read(with_shapes(tmp_path, **{name: shape}))
    assert f"{name!r} is {list(shape)}" in str(caught.value)
    assert str(expected) in str(caught.value)


@pytest.mark.parametrize("name", ["blk.0.attn_qkv.scale", "blk.1.attn_q.bias", "rope_freqs.weight"])
def test_a_tensor_that_would_be_ignored_is_refused(tmp_path, name):
    with pytest.raises(ModelError, match="no part of a Qwen"):
        read(with_shapes(tmp_path, **{name: (4,)}))


@pytest.mark.parametrize("name", ["blk.0.ssm_a", "blk.0.ssm_conv1d.weight", "output_norm.weight"])
def test_a_vector_that_is_not_f32_is_refused(tmp_path, name):
    path = write_small(tmp_path / "m.gguf", types={name: TensorType.F16})
    with pytest.raises(ModelError, match=f"{name}' is F16"):
        read(path)


def test_a_file_with_the_mtp_block_only_is_refused(tmp_path):
    shapes = {"token_embd.weight": (6, 8), "blk.2.nextn.eh_proj.weight": (8, 16)}
    with pytest.raises(ModelError, match="MTP block"):
        read(write_small(tmp_path / "mtp-m.gguf", shapes=shapes))


def test_a_drafter_is_refused_as_the_model(tmp_path):
    path = tmp_path / "drafter.gguf"
    with GGUFWriter(path, {"general.architecture": "dflash"}, {}):
        pass
    with pytest.raises(ModelError, match="drafter"):
        read(path)


def test_a_vocabulary_larger_than_the_table_is_refused(tmp_path):
    tokens = {"tokenizer.ggml.tokens": [str(i) for i in range(7)]}
    path = write_small(tmp_path / "m.gguf", metadata=small_metadata() | tokens)
    with pytest.raises(ModelError, match="7 tokens, but the embedding table has 6 rows"):
        read(path)


def test_a_vocabulary_without_a_token_is_refused(tmp_path):
    types = {"tokenizer.ggml.token_type": np.full(6, 5, np.int32)}
    path = write_small(tmp_path / "m.gguf", metadata=small_metadata() | types)
    with pytest.raises(ModelError, match="no token in use"):
        read(path)
