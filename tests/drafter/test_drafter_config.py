"""DrafterConfig: what a file must say, and which target it belongs to."""

from dataclasses import replace

import numpy as np
import pytest

from mtlqwen.config import ModelConfig
from mtlqwen.drafter import DrafterConfig, DrafterWeights, config_metadata, expected_tensors
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf
from mtlqwen.load import demo_model_path

DEMO = demo_model_path().with_name("demo-dflash-q8_0.gguf")
CONFIG = DrafterConfig(
    hidden_dim=32,
    ffn_dim=4,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rope_theta=1e7,
    norm_eps=2.0**-20,
    num_vocab_rows=20,
    block_size=8,
    mask_id=19,
    taps=(1, 3),
    windows=(0, 0),
    causal=(False, False),
)
CONFIG_2 = replace(CONFIG, windows=(5, 5), conv_group=16, selector_rank=48)
BOOK = "selector_predecessor.weight"


def written(path, *, config=CONFIG, drop=(), extra=(), types=(), **changes):
    """A small drafter; changes of metadata by the last parts of their keys, None leaves one out."""
    metadata = {"general.architecture": "dflash"} | config_metadata(config)
    for name, value in changes.items():
        keys = [key for key in metadata if key.endswith(f".{name}")]
        metadata[keys[0] if keys else f"dflash.{name}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    shapes = {k: v for k, v in expected_tensors(config).items() if k not in drop} | dict(extra)
    kinds = dict(types)
    with GGUFWriter(
        path, metadata, {n: (kinds.get(n, TensorType.F32), s) for n, s in shapes.items()}
    ) as writer:
        for name, shape in shapes.items():
            row_bytes = kinds.get(name, TensorType.F32).row_bytes(shape[-1])
            writer.write(name, np.zeros((int(np.prod(shape[:-1])), row_bytes), np.uint8))
    return path


def config_of(path):
    gguf = open_gguf(path)
    try:
        return DrafterConfig.from_gguf(gguf)
    finally:
        gguf.close()


def test_the_demo_drafter_is_read_and_belongs_to_the_demo_model():
    config = config_of(DEMO)
    assert (config.taps, config.block_size, config.mask_id) == ((1, 3, 5), 16, 4095)
    assert (config.windows, config.causal) == ((512, 0), (True, False))
    gguf = open_gguf(demo_model_path())
    config.check_target(ModelConfig.from_gguf(gguf))
    gguf.close()


def test_a_drafter_of_full_layers_sees_its_whole_block(tmp_path):
    assert config_of(written(tmp_path / "d.gguf")) == CONFIG


@pytest.mark.parametrize("tokens_known", [True, False])
def test_version_2_is_seen_from_its_tensors_and_keys(tmp_path, tokens_known):
    changes = {} if tokens_known else {"vocab_size": None}  # as many as the codebook has rows
    assert config_of(written(tmp_path / "d.gguf", config=CONFIG_2, **changes)) == CONFIG_2


def test_a_stored_causal_flag_counts_for_every_layer(tmp_path):
    mixed = replace(CONFIG, windows=(5, 0), causal=(True, False))
    assert config_of(written(tmp_path / "a.gguf", config=mixed)) == mixed
    for causal in (False, True):
        config = replace(mixed, causal=(causal, causal))
        path = written(tmp_path / "b.gguf", config=config)
        assert config_of(path) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layers": np.array([4, 2], np.int32)}, "not ascending"),
        ({"target_layers": np.array([0, 2], np.int32)}, "not ascending from 1"),
        ({"target_layers": None}, "target_layers is missing"),
        ({"block_size": 1}, "block_size is 1"),
        ({"block_size": 65}, "block_size is 65"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"head_count_kv": 3}, "no divisor of 2"),
        ({"value_length": 32}, "value_length is 32, not 16"),
        ({"rope.dimension_count": 8}, "rope.dimension_count is 8, not 16"),
        ({"rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn', not 'none'"),
        ({"embedding_length": 16}, "the config of the file makes it"),
        ({"attention.sliding_window_pattern": np.array([True])}, "one flag for each layer"),
        ({"drop": ["blk.1.attn_q.weight"]}, "'blk.1.attn_q.weight' is missing"),
        ({"types": {"output_norm.weight": TensorType.F16}}, "is F16; norms and convolution taps"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5, not 1.0"),
        (
            {"extra": {"blk.0.attn_conv_base": (2, 2, 8)}},
            "'blk.0.attn_conv_base' is no part of a DFlash drafter of version 1",
        ),
        ({"selector_rank": 16}, "conv_kernel_size is missing"),
        ({"config": CONFIG_2, "conv_kernel_size": 4}, r"dflash\.conv_kernel_size is 4, not 2"),
        ({"config": CONFIG_2, "conv_group_size": 8}, "conv_group_size is 8, not a multiple of 16"),
        ({"config": CONFIG_2, "selector_rank": 24}, "selector_rank is 24, not a multiple of 16"),
        ({"config": CONFIG_2, "selector_top_k": 32}, "selector_top_k is 32, not 16"),
        ({"config": CONFIG_2, "selector_top_k": None}, "selector_top_k is missing"),
        ({"config": CONFIG_2, "drop": [BOOK]}, "selector_predecessor.weight' is missing"),
        ({"config": CONFIG_2, "vocab_size": 21}, r"is \[20, 48\], but .* makes it \[21, 48\]"),
        (
            {"config": replace(CONFIG_2, selector_rank=64), "types": {BOOK: TensorType.Q8_0}},
            "is Q8_0, but codebooks are read as F32, F16 or BF16; `mtlqwen convert`",
        ),
        (
            {"config": CONFIG_2, "types": {"blk.0.ffn_conv_base": TensorType.F16}},
            "'blk.0.ffn_conv_base' is F16; norms and convolution taps are F32",
        ),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        config_of(written(tmp_path / "d.gguf", **changes))


def test_a_target_is_no_drafter():
    with pytest.raises(ModelError, match="no DFlash drafter: its architecture is 'qwen35'"):
        config_of(demo_model_path())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_dim": 512}, "states are 512 wide, the model's 256"),
        ({"num_vocab_rows": 4095}, "made for 4095 tokens, the model has 4096"),
        ({"taps": (1, 8)}, "output of block 8, the model's last is 7"),
        ({"mask_id": 4096}, "mask is token 4096 of 4096"),
    ],
)
def test_a_drafter_of_another_model_is_refused_with_the_reason(changes, message):
    gguf = open_gguf(demo_model_path())
    target = ModelConfig.from_gguf(gguf)
    gguf.close()
    with pytest.raises(ModelError, match=message):
        replace(config_of(DEMO), **changes).check_target(target)


def test_weights_lie_in_the_mapped_file(device):
    gguf = open_gguf(DEMO)
    weights = DrafterWeights(device, gguf, DrafterConfig.from_gguf(gguf))
    assert weights.fusion.shape == (256, 768)
    assert weights.layers[1].attention.query.shape == (512, 256)
    assert weights.layers[0].ffn_down.type is TensorType.Q8_0
    weights.close()
    gguf.close()
