"""Time to choose a token from one row of the published vocabulary: pytest bench/test_sample.py"""

import numpy as np
import pytest

from mtlqwen._sample import Sampler
from mtlqwen.sampling import SamplingParams

NUM_ROWS, NUM_LOGITS, NUM_TOKENS = 8, 248_320, 248_077

CASES = {
    "greedy": {},
    "top_k_20_top_p_95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "top_k_20_penalties": {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.1,
    },
    "temperature": {"temperature": 1.0},
    "top_p_95": {"temperature": 1.0, "top_p": 0.95},
    "min_p_05": {"temperature": 1.0, "min_p": 0.05},
}


@pytest.fixture(scope="module")
def rows():
    """f32 [8, logits]: a wide bulk and a few tokens far above it, as a trained model gives."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((NUM_ROWS, NUM_LOGITS), np.float32) * 2.5
    logits[random.random(logits.shape) < 2e-4] += 12
    return logits


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_sample_one_row(benchmark, rows, params):
    sampler = Sampler(SamplingParams(seed=1, **params), NUM_TOKENS)
    for token in range(0, 100_000, 100):
        sampler.accept(token)
    turn = iter(range(1 << 60))
    benchmark(lambda: sampler.sample(rows[next(turn) % NUM_ROWS]))


def test_filter_a_flat_row_by_top_p(benchmark):
    """The worst case: most of the vocabulary stays."""
    logits = np.random.default_rng(1).standard_normal(NUM_LOGITS, np.float32) * 0.3
    sampler = Sampler(SamplingParams(seed=1, temperature=1.0, top_p=0.95), NUM_TOKENS)
    benchmark(lambda: sampler.sample(logits))
