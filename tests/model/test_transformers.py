"""Live against transformers in float32, where torch and transformers are installed."""

import sys
from pathlib import Path

import numpy as np
import pytest
from lone_sequence import LoneSequence

from mtlqwen.convert import convert_hf

sys.path.append(str(Path(__file__).parents[1] / "convert"))

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("transformers", reason="transformers is not installed")
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("values_per_key", [1, 2, 3])
def test_logits_equal_transformers(torch, open_runner, tmp_path, values_per_key, tied):
    from hf_directory import write_tokenizer

    model = random_model(torch, values_per_key, tied)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    convert_hf(tmp_path, tmp_path / "model.gguf", "F32")
    rng = np.random.default_rng(values_per_key)
    ids = rng.integers(0, 512, 162)
    with torch.no_grad():
        expected = model(torch.tensor(ids)[None], use_cache=False).logits[0].numpy()
    cuts = np.sort(rng.choice(np.arange(1, 150), 3, replace=False))
    pieces = [*np.diff([0, *cuts, 150]), *[1] * 12]
    for sizes in (pieces, [128, 34]):
        runner = open_runner(tmp_path / "model.gguf")
        sequence = LoneSequence(runner)
        logits = sequence.feed(ids, sizes)
        sequence.close()
        assert np.abs(logits - expected).max() < 1e-3 * expected.std()


def random_model(torch, values_per_key, tied):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=2,
        linear_num_value_heads=2 * values_per_key,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    torch.manual_seed(values_per_key)
    model = Qwen3_5ForCausalLM(config).float().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.randn(weight.shape)
            if name.endswith("linear_attn.norm.weight"):
                weight.copy_(1 + 0.3 * draw)
            elif "norm" in name:
                weight.copy_(0.3 * draw)
            elif "A_log" in name:
                weight.copy_(torch.log(torch.empty(weight.shape).uniform_(0.01, 4)))
            elif "dt_bias" in name:
                weight.copy_(draw - 2)
            elif "conv1d" in name:
                weight.copy_(0.5 * draw)
            else:
                weight.copy_(draw / weight.shape[-1] ** (0 if "embed" in name else 0.5))
    return model
