"""Drafts do not change what is sampled: the joint distribution of three tokens of an answer."""

import itertools

import numpy as np
import pytest
from sampling_reference import distribution

from mtlqwen.request import Request
from mtlqwen.sampling import SamplingParams

NUM_TOKENS, NUM_DRAWS, LENGTH = 6, 20_000, 3
PROMPT = (2, 5)


def logits_table():
    """Logits behind each possible beginning of an answer."""
    rng = np.random.default_rng(5)
    beginnings = [b for n in range(LENGTH) for b in itertools.product(range(NUM_TOKENS), repeat=n)]
    return {b: rng.standard_normal(NUM_TOKENS).astype(np.float32) for b in beginnings}


def sample(params, table, number):
    """An answer of three tokens, by passes that verify as many drafts as fit, and how many were
    right. Every beginning has a draft of its own.
    """
    prompt = np.array(PROMPT, np.int32)
    request = Request(
        prompt, number, params, num_left=LENGTH, num_tokens=NUM_TOKENS, checkpoints=(),
        stop_ids=(), on_output=lambda output: None,
    )  # fmt: skip
    tokens, num_accepted = (), 0
    while len(tokens) < LENGTH:
        drafts = [
            (3 * len(tokens) + i + number) % NUM_TOKENS for i in range(LENGTH - len(tokens) - 1)
        ]
        rows = np.stack([table[tokens + tuple(drafts[:i])] for i in range(len(drafts) + 1)])
        answer = request.answer(rows, [-1] * len(rows), drafts)
        tokens += tuple(answer.tokens)
        num_accepted += answer.num_accepted
    return tokens, num_accepted


def expected_counts(params, table):
    expected = np.zeros([NUM_TOKENS] * LENGTH)
    for answer in itertools.product(range(NUM_TOKENS), repeat=LENGTH):
        steps = [
            distribution(table[answer[:n]], params, PROMPT, answer[:n])[answer[n]]
            for n in range(LENGTH)
        ]
        expected[answer] = np.prod(steps)
    return expected * NUM_DRAWS


def chi_square_limit(degrees):
    """Exceeded in one case of a thousand (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.09 * spread**0.5) ** 3


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 4, "top_p": 0.9},
        {"temperature": 0.8, "min_p": 0.1, "repetition_penalty": 1.3},
        {"temperature": 1.2, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    ],
)
def test_answers_with_drafts_have_the_distribution_of_the_target(options):
    table = logits_table()
    seeds = np.random.default_rng(1).integers(1 << 62, size=NUM_DRAWS)
    seen, accepted = np.zeros([NUM_TOKENS] * LENGTH), 0
    for number, seed in enumerate(seeds.tolist()):
        answer, right = sample(SamplingParams(**options, seed=seed), table, number)
        seen[answer] += 1
        accepted += right
    expected = expected_counts(SamplingParams(**options), table)
    assert seen[expected == 0].sum() == 0
    rare = expected < 5  # together one cell
    cells = [(seen[~rare], expected[~rare]), (seen[rare].sum(), expected[rare].sum())]
    chi_square = sum(float(((s - e) ** 2 / e).sum()) for s, e in cells if np.all(e > 0))
    assert chi_square < chi_square_limit((~rare).sum())
    assert accepted > NUM_DRAWS / 5
