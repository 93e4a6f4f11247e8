"""The trained demo model against transformers in float32 (tests/data/reference.json)."""

import numpy as np
import pytest
from lone_sequence import LoneSequence

from mtlqwen.convert import convert_gguf

CLEAR_MARGIN = 0.02  # logits: below it float32 rounding may decide between the first two


@pytest.fixture
def fed(open_runner, demo_f32, golden):
    """Logits [64, vocabulary] of every prompt with the reference's tokens fed in."""
    runner = open_runner(demo_f32)
    logits = []
    for prompt in golden:
        sequence = LoneSequence(runner)
        ids = prompt["prompt"] + prompt["tokens"][:-1]
        logits.append(sequence.feed(ids)[len(prompt["prompt"]) - 1 :])
        sequence.close()
    return logits


def test_fed_the_reference_tokens_the_argmax_agrees_wherever_the_margin_is_clear(fed, golden):
    clear = wrong = 0
    for prompt, logits in zip(golden, fed, strict=True):
        is_clear = np.array(prompt["margins"]) >= CLEAR_MARGIN
        clear += is_clear.sum()
        wrong += (logits.argmax(-1) != prompt["tokens"])[is_clear].sum()
    assert (clear, wrong) == (1269, 0)


def test_top_five_logits_agree_to_a_thousandth_of_the_logit_scale(fed, golden):
    compared = 0
    for prompt, logits in zip(golden, fed, strict=True):
        for row, top in zip(logits, prompt.get("top5", []), strict=False):
            ids, values = zip(*top, strict=True)
            scale = np.abs(row).max()
            np.testing.assert_allclose(row[list(ids)], values, atol=1e-3 * scale, rtol=0)
            compared += 1
    assert compared == 3 * 64


def test_greedy_output_equals_the_reference_up_to_its_first_unclear_step(
    open_runner, demo_f32, golden
):
    runner = open_runner(demo_f32)
    for prompt in golden:
        unclear = np.array(prompt["margins"]) < CLEAR_MARGIN
        length = int(unclear.argmax()) if unclear.any() else len(prompt["tokens"])
        assert greedy(runner, prompt["prompt"], length) == prompt["tokens"][:length], prompt["name"]


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "Q4_K_M"])
def test_quantised_files_stay_close_to_f32(open_runner, demo_f32, golden, fed, file_type, tmp_path):
    """Mean KL(F32 || type) over the answers; bounds are about twice what was measured."""
    bounds = {"Q8_0": 0.002, "Q4_0": 0.5, "Q4_K_M": 0.2}
    path = tmp_path / "model.gguf"
    convert_gguf(demo_f32, path, file_type)
    runner = open_runner(path)
    total = count = 0.0
    for prompt, reference in zip(golden, fed, strict=True):
        sequence = LoneSequence(runner)
        ids = prompt["prompt"] + prompt["tokens"][:-1]
        logits = sequence.feed(ids)[len(prompt["prompt"]) - 1 :]
        sequence.close()
        total += divergence(reference, logits).sum()
        count += len(logits)
    assert total / count < bounds[file_type]


def greedy(runner, ids, num_tokens):
    sequence = LoneSequence(runner)
    tokens = [int(sequence.feed(ids)[-1].argmax())]
    while len(tokens) < num_tokens:
        tokens.append(int(sequence.feed(tokens[-1:])[-1].argmax()))
    sequence.close()
    return tokens[:num_tokens]


def divergence(p_logits, q_logits):
    """KL(p || q) of each row, in nats."""
    p = p_logits - p_logits.max(-1, keepdims=True)
    q = q_logits - q_logits.max(-1, keepdims=True)
    log_p = p - np.log(np.exp(p).sum(-1, keepdims=True))
    log_q = q - np.log(np.exp(q).sum(-1, keepdims=True))
    return (np.exp(log_p) * (log_p - log_q)).sum(-1)
