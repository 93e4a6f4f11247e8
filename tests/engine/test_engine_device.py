"""The engine over the demo model on the CPU device: bit-equal to lone cold runs."""

import numpy as np
import pytest

from mtlqwen.load import close_engine, demo_model_path, open_engine
from mtlqwen.sampling import SamplingParams

LENGTHS = (1, 17, 127, 129, 200, 256, 40)
MAX_TOKENS = 8


def prompts(num_tokens):
    """Of two families with common beginnings."""
    rng = np.random.default_rng(3)
    families = rng.integers(0, num_tokens, (2, 300))
    return [
        [
            *families[i % 2][: length * 2 // 3].tolist(),
            *rng.integers(0, num_tokens, length).tolist(),
        ]
        for i, length in enumerate(LENGTHS)
    ]


def submit(engine, ids, **params):
    outputs = []
    engine.submit(
        ids, SamplingParams(**{"max_tokens": MAX_TOKENS, **params}), on_output=outputs.append
    )
    return outputs


def drain(engine):
    while engine.step():
        pass


def tokens(outputs):
    assert outputs[-1].finish_reason == "length"
    return [token for output in outputs for token in output.tokens]


@pytest.fixture(scope="module")
def work():
    """Prompts with the tokens that each gives alone and cold; bytes of a bundle, of a state."""
    engine = open_engine(demo_model_path(), ctx=1024, threads=1, prefix_memory=0)
    answers = []
    ids = prompts(engine.runner.config.num_tokens)
    for prompt in ids:
        outputs = submit(engine, prompt)
        drain(engine)
        answers.append(tokens(outputs))
    sizes = engine.runner.bundle_bytes, engine.runner.state_bytes
    close_engine(engine)
    return list(zip(ids, answers, strict=True)), *sizes


@pytest.mark.parametrize(
    ("slots", "threads", "pass_tokens", "bundles", "cached"),
    [
        (8, 2, 128, 64, True),  # prefix hits, partial bundles, held requests
        (3, 3, 37, 5, False),  # preemption
        (8, 2, 16, 6, True),  # evictions and preemption
    ],
)
def test_tokens_equal_those_of_lone_cold_runs(work, slots, threads, pass_tokens, bundles, cached):
    pairs, bundle_bytes, state_bytes = work
    engine = open_engine(
        demo_model_path(),
        ctx=1024,
        threads=threads,
        max_slots=slots,
        pass_tokens=pass_tokens,
        kv_memory=bundles * bundle_bytes,
        prefix_memory=8 * state_bytes if cached else 0,
    )
    for order in (pairs, pairs[::-1]):
        running = [(submit(engine, ids), answer) for ids, answer in order]
        drain(engine)
        for outputs, answer in running:
            assert tokens(outputs) == answer
    stats = engine.stats
    assert (stats.cached_tokens > 0) == cached
    assert (stats.preemptions > 0) == (bundles < 16)
    close_engine(engine)
