"""The drafter's network on the CPU device against NumPy: context, blocks, proposals."""

import numpy as np
import pytest
from drafter_reference import DrafterReference
from small_drafter import (
    MASK,
    NUM_TOKENS,
    NUM_VOCAB_ROWS,
    SmallDrafter,
    small_config,
    write_drafter,
)

CONFIGS = {
    "1, all full": small_config((0, 0), (False, False), 16),
    "1, sliding and full": small_config((10, 0), (True, False), 16),
    "1, full and causal": small_config((0, 0), (True, True), 8),
    "2, sliding, none causal": small_config((10, 10), (False, False), 8, is_2=True),
    "2, window shorter than the block": small_config((5, 5), (False, False), 8, is_2=True),
}
ROUNDS = [(13, 2), (3, 9), (1, 1), (8, 5), (5, 16)]  # rows of context of two sequences
SLOTS = (2, 0)
# Of logits around two. Float32 differs by less than a tenth of it; a few keys and values next to
# the middle between two f16 are rounded the other way.
TOLERANCE, RMS_TOLERANCE = 3e-3, 2e-4


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def pair(request, device, tmp_path):
    """A drafter, and a reference for each of two sequences."""
    rng = np.random.default_rng(7)
    weights = write_drafter(tmp_path / "d.gguf", request.param, rng)
    table = rng.standard_normal((NUM_VOCAB_ROWS, request.param.hidden_dim)).astype(np.float32)
    head = rng.standard_normal(table.shape).astype(np.float32) / 4
    drafter = SmallDrafter(device, tmp_path / "d.gguf", table, head)
    assert drafter.config == request.param
    yield drafter, [DrafterReference(request.param, weights, table, head) for _ in SLOTS], rng
    drafter.close()


def test_blocks_equal_numpy_while_the_context_grows(pair):
    drafter, references, rng = pair
    block_size, num_features = drafter.config.block_size, len(drafter.config.taps) * 64
    clear = total = 0
    for lengths in ROUNDS:
        features = [rng.standard_normal((n, num_features)).astype(np.float32) for n in lengths]
        places = []
        for slot, reference, own in zip(SLOTS, references, features, strict=True):
            places += [(slot, reference.length + i) for i in range(len(own))]
            reference.inject(own)
        drafter.inject(np.concatenate(features), places)
        anchors = rng.integers(0, NUM_TOKENS, 2)
        blocks = [[anchor] + [MASK] * (block_size - 1) for anchor in anchors]
        work = [(s, r.length, b) for s, r, b in zip(SLOTS, references, blocks, strict=True)]
        logits, drafts = drafter.draft(work)
        for reference, block, own_logits, own_drafts in zip(
            references, blocks, np.split(logits, 2), np.split(drafts, 2), strict=True
        ):
            expected, h = reference.block(block)
            np.testing.assert_allclose(own_logits, expected, atol=TOLERANCE, rtol=0)
            assert np.sqrt(np.mean((own_logits - expected) ** 2)) < RMS_TOLERANCE
            clear += check_path(reference, block[0], expected[:, :NUM_TOKENS], h, own_drafts)
            total += block_size - 1
    assert clear > 0.9 * total


def check_path(reference, anchor, logits, h, drafts):
    """Drafts are the reference's, each behind the draft before it, wherever one is clearly best."""
    clear, before = 0, anchor
    for row, state, draft in zip(logits, h, drafts, strict=True):
        scores = reference.scores(row, state, before)
        second, best = np.sort(scores)[-2:]
        if best - second > 2 * TOLERANCE:
            clear += 1
            assert draft == scores.argmax()
        before = draft
    return clear


@pytest.mark.parametrize("is_2", [False, True])
def test_where_rare_tokens_are_few_only_common_ones_are_drafted(
    device, tmp_path, monkeypatch, is_2
):
    num_common = 100
    monkeypatch.setattr("mtlqwen.drafter_runner.NUM_COMMON_TOKENS", num_common)
    config, rng = small_config((10, 0), (True, False), 16, is_2=is_2), np.random.default_rng(3)
    weights = write_drafter(tmp_path / "d.gguf", config, rng)
    table = rng.standard_normal((NUM_VOCAB_ROWS, config.hidden_dim)).astype(np.float32)
    drafter = SmallDrafter(device, tmp_path / "d.gguf", table, table)
    reference = DrafterReference(config, weights, table, table)
    features = rng.standard_normal((20, len(config.taps) * 64)).astype(np.float32)
    reference.inject(features)
    drafter.inject(features, [(0, position) for position in range(20)])
    ids = [7] + [MASK] * 15
    expected, h = reference.block(ids)
    limit = drafter.runner._max_rare
    assert 0 < limit < 256
    for num_rare, num_tokens in ((0, num_common), (limit, num_common), (limit + 1, NUM_TOKENS)):
        logits, drafts = drafter.draft([(0, 20, ids)], num_rare=num_rare)
        if num_tokens == num_common:
            logits = drafter.logits[1].ravel()[: 15 * num_common].reshape(15, num_common)
        np.testing.assert_allclose(
            logits[:, :num_tokens], expected[:, :num_tokens], atol=4 * TOLERANCE, rtol=0
        )
        assert check_path(reference, ids[0], expected[:, :num_tokens], h, drafts) > 10
        assert (drafts < num_common).all() == (num_tokens == num_common)
    drafter.close()
