"""DrafterConfig: what a file must say, and which target it belongs to."""

from dataclasses import replace

import numpy as np
import pytest

from mtlqwen.config import ModelConfig
from mtlqwen.drafter import DrafterConfig, DrafterWeights, expected_tensors
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf
from mtlqwen.load import demo_model_path

DEMO = demo_model_path().with_name("demo-dflash-q8_0.gguf")
METADATA = {
    "general.architecture": "dflash",
    "dflash.block_count": 2,
    "dflash.embedding_length": 8,
    "dflash.feed_forward_length": 4,
    "dflash.attention.head_count": 2,
    "dflash.attention.head_count_kv": 1,
    "dflash.attention.key_length": 4,
    "dflash.attention.value_length": 4,
    "dflash.attention.layer_norm_rms_epsilon": 1e-6,
    "dflash.rope.freq_base": 1e7,
    "dflash.vocab_size": 20,
    "dflash.block_size": 8,
    "dflash.target_layers": np.array([2, 4], np.int32),
    "tokenizer.ggml.mask_token_id": 19,
}
CONFIG = DrafterConfig(
    hidden_dim=8,
    ffn_dim=4,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rope_theta=1e7,
    norm_eps=pytest.approx(1e-6),
    num_vocab_rows=20,
    block_size=8,
    mask_id=19,
    taps=(1, 3),
    windows=(0, 0),
    causal=(False, False),
)


def written(path, *, drop=(), extra=(), types=(), **changes):
    """A small drafter; changes of metadata by the last parts of their keys, None leaves one out."""
    metadata = dict(METADATA)
    for name, value in changes.items():
        keys = [key for key in metadata if key.endswith(f".{name}")]
        section = (
            "attention." if name in ("sliding_window", "sliding_window_pattern", "causal") else ""
        )
        metadata[keys[0] if keys else f"dflash.{section}{name}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    shapes = {k: v for k, v in expected_tensors(CONFIG).items() if k not in drop} | dict(extra)
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


def test_a_stored_causal_flag_counts_for_every_layer(tmp_path):
    pattern = np.array([True, False])
    options = {"sliding_window": 5, "sliding_window_pattern": pattern}
    config = config_of(written(tmp_path / "a.gguf", **options))
    assert (config.windows, config.causal) == ((5, 0), (True, False))
    config = config_of(written(tmp_path / "b.gguf", **options, causal=False))
    assert config.causal == (False, False)
    config = config_of(written(tmp_path / "c.gguf", causal=True))
    assert config.causal == (True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layers": np.array([4, 2], np.int32)}, "not ascending"),
        ({"target_layers": np.array([0, 2], np.int32)}, "not ascending from 1"),
        ({"target_layers": None}, "target_layers is missing"),
        ({"block_size": 1}, "block_size is 1"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"head_count_kv": 3}, "no divisor of 2"),
        ({"embedding_length": 16}, "the config of the file makes it"),
        ({"sliding_window_pattern": np.array([True])}, "one flag for each layer"),
        ({"drop": ["blk.1.attn_q.weight"]}, "'blk.1.attn_q.weight' is missing"),
        ({"types": {"output_norm.weight": TensorType.F16}}, "is F16; norms and convolution taps"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5, not 1.0"),
        (
            {"extra": {"blk.0.attn_conv_base": (2, 2, 8)}},
            "'blk.0.attn_conv_base' is no part of a DFlash drafter of version 1",
        ),
        ({"selector_rank": 16}, "conv_kernel_size is missing"),
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
