import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import adjusted_logits, distribution, uniform

from mtlqwen._sample import Sampler
from mtlqwen.errors import MtlqError, RequestError
from mtlqwen.sampling import SamplingParams

MODES = {
    "greedy": {},
    "dense": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 5},
    "top_p": {"temperature": 0.8, "top_p": 0.8},
    "min_p": {"temperature": 0.8, "min_p": 0.1},
    "all": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def random_logits(num_tokens, seed, spread=3.0):
    return (np.random.default_rng(seed).standard_normal(num_tokens) * spread).astype(np.float32)


def sampler_of(num_tokens, generated=(), prompt_ids=(), **params):
    sampler = Sampler(SamplingParams(**params), num_tokens, prompt_ids=prompt_ids)
    for token in generated:
        sampler.accept(token)
    return sampler


def assert_follows_reference(logits, generated=(), prompt_ids=(), **params):
    num_tokens = len(logits)
    sampler = sampler_of(num_tokens, generated, prompt_ids, **params)
    ids, probabilities = sampler.distribution(logits)
    assert np.all(np.diff(ids) > 0)
    actual = np.zeros(num_tokens)
    actual[ids] = probabilities
    expected = distribution(logits, SamplingParams(**params), prompt_ids, generated)
    np.testing.assert_allclose(actual, expected, rtol=3e-5, atol=1e-12)
    return sampler


def draws(sampler, logits, count):
    tokens = []
    for _ in range(count):
        tokens.append(sampler.sample(logits))
        sampler.accept(tokens[-1])
    return np.array(tokens)


# ---- the filtered distribution -------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [1, 2, 64, 65, 1100])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_distributions_equal_the_reference(num_tokens, spread):
    logits = random_logits(num_tokens, seed=num_tokens, spread=spread)
    for temperature, top_k, top_p, min_p in itertools.product(
        [0.0, 0.6, 3.0], [0, 1, 20, 400, 9999], [0.0, 0.3, 0.95, 1.0], [0.0, 0.02, 1.0]
    ):
        assert_follows_reference(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )


@settings(max_examples=200)
@given(
    seed=st.integers(0, 1000),
    num_tokens=st.integers(2, 200),
    generated=st.lists(st.integers(0, 1000), max_size=30),
    prompt_ids=st.lists(st.integers(0, 1000), max_size=10),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-20, 20, width=32), max_size=5),
    filters=st.sampled_from(list(MODES.values())),
)
def test_penalties_and_bias_equal_the_reference(
    seed, num_tokens, generated, prompt_ids, logit_bias, filters, **penalties
):
    logits = random_logits(num_tokens, seed)
    params = {
        **filters,
        **penalties,
        "logit_bias": {token % num_tokens: bias for token, bias in logit_bias.items()},
    }
    generated = [token % num_tokens for token in generated]
    prompt_ids = [token % num_tokens for token in prompt_ids]
    x = np.sort(adjusted_logits(logits, SamplingParams(**params), prompt_ids, generated))
    if np.diff(x).min() > 1e-5:  # else rounding decides which of two comes first
        assert_follows_reference(logits, generated, prompt_ids, **params)


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(5000, np.float32),
        np.linspace(-9, 9, 5000, dtype=np.float32),
        np.linspace(9, -9, 5000, dtype=np.float32),
        np.repeat(np.float32([1, 5, 3, 5, 2]), 1000),
        np.tile(np.float32([-np.inf, 0, -np.inf, 2]), 1250),
        np.r_[np.full(4999, -np.inf, np.float32), np.float32(-3)],
        np.r_[np.float32(1e30), np.full(4999, -1e30, np.float32)],
    ],
    ids=["equal", "rising", "falling", "ties", "masked", "one", "extreme"],
)
def test_order_ties_and_extremes_make_no_difference(logits):
    for mode in MODES.values():
        assert_follows_reference(logits, **mode)
    for top_k in (1, 7, 64, 1000, 2500):
        assert_follows_reference(logits, temperature=1.0, top_k=top_k)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
def test_extreme_temperatures_are_limits(temperature):
    logits = random_logits(500, seed=1)
    ids, p = sampler_of(500, temperature=temperature).distribution(logits)
    if temperature < 1:
        assert ids[p > 0] == [np.argmax(logits)]
    else:
        np.testing.assert_allclose(p, 1 / 500, rtol=1e-4)


def test_a_real_vocabulary_equals_the_reference():
    logits = random_logits(248_077, seed=3, spread=2.5)
    logits[::5000] += 9
    for mode in MODES.values():
        assert_follows_reference(logits, **mode)


# ---- draws ---------------------------------------------------------------------------------------


def assert_fits(counts, probabilities):
    """Pearson's test at a risk of about 1e-4, by Wilson and Hilferty's approximation."""
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities * counts.sum()
    rare = expected < 8  # are one cell
    counts = np.r_[counts[~rare], counts[rare].sum()]
    expected = np.r_[expected[~rare], expected[rare].sum()]
    chi_square = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    n = max(len(counts) - 1, 1)
    assert chi_square < n * (1 - 2 / (9 * n) + 3.72 * (2 / (9 * n)) ** 0.5) ** 3


@every_mode
def test_draws_follow_the_distribution(mode):
    logits = random_logits(12, seed=7, spread=1.5)
    tokens = draws(sampler_of(12, seed=99, **mode), logits, 20_000)
    expected = distribution(logits, SamplingParams(**mode))
    assert_fits(np.bincount(tokens, minlength=12), expected)


@every_mode
def test_draws_follow_the_distribution_with_penalties(mode):
    logits = random_logits(12, seed=8, spread=1.5)
    mode = {**mode, "logit_bias": {3: 2.0, 11: -1.0}, "repetition_penalty": 1.5}
    tokens = [sampler_of(12, [1, 5, 5], seed=seed, **mode).sample(logits) for seed in range(5000)]
    expected = distribution(logits, SamplingParams(**mode), generated=[1, 5, 5])
    assert_fits(np.bincount(tokens, minlength=12), expected)


def test_draws_reach_every_block_of_a_large_row():
    logits = random_logits(10_000, seed=5, spread=0.5)
    tokens = draws(sampler_of(10_000, seed=1, temperature=1.0), logits, 20_000)
    expected = distribution(logits, SamplingParams(temperature=1.0))
    assert_fits(np.bincount(tokens // 100), expected.reshape(-1, 100).sum(1))
    assert_fits(np.bincount(tokens % 64), np.bincount(np.arange(10_000) % 64, expected))


def test_draws_of_neighbouring_positions_and_seeds_are_independent():
    logits = np.zeros(4, np.float32)
    tokens = draws(sampler_of(4, seed=5, temperature=1.0), logits, 20_000)
    assert_fits(np.bincount(tokens[:-1] * 4 + tokens[1:]), np.full(16, 1 / 16))
    first = np.array(
        [sampler_of(4, seed=seed, temperature=1.0).sample(logits) for seed in range(10_000)]
    )
    assert_fits(np.bincount(first[:-1] * 4 + first[1:]), np.full(16, 1 / 16))


@every_mode
def test_masked_tokens_are_never_drawn(mode):
    logits = np.full(200, -np.inf, np.float32)
    logits[[3, 64, 199]] = [1.0, 1.5, 1.2]
    tokens = draws(sampler_of(200, seed=2, **mode), logits, 500)
    assert set(tokens) <= {3, 64, 199}


# ---- seeds ---------------------------------------------------------------------------------------


def test_a_seed_reproduces_and_another_differs():
    logits = random_logits(300, seed=1)

    def tokens(seed):
        return draws(sampler_of(300, seed=seed, temperature=1.0), logits, 25).tolist()

    assert tokens(11111) == tokens(11111)
    assert len({tuple(tokens(seed)) for seed in (11111, 22222, 33333, -1, 0, (1 << 64) - 2)}) == 6
    assert tokens(-1) == tokens((1 << 64) - 1)
    assert len({tuple(tokens(None)) for _ in range(3)}) == 3


def test_a_drawn_seed_can_be_used_again():
    logits = random_logits(300, seed=1)
    first = sampler_of(300, temperature=1.0)
    again = sampler_of(300, temperature=1.0, seed=first.seed)
    assert draws(first, logits, 20).tolist() == draws(again, logits, 20).tolist()


def test_a_draw_depends_on_seed_and_position_alone():
    logits = random_logits(300, seed=1)
    sampler = sampler_of(300, temperature=1.0, seed=4)
    expected = draws(sampler, logits, 10).tolist()
    assert sampler.position == 10
    for position in range(10):
        other = sampler_of(300, generated=[7] * position, temperature=1.0, seed=4)
        other.distribution(random_logits(300, seed=9))
        assert [other.sample(logits), other.sample(logits)] == [expected[position]] * 2


@every_mode
def test_draws_invert_the_cumulative_distribution(mode):
    """Seeds that users wrote down must give the same text after an update."""
    logits = random_logits(1000, seed=4)
    tokens = draws(sampler_of(1000, seed=42, **mode), logits, 50)
    cumulative = np.cumsum(distribution(logits, SamplingParams(**mode)))
    for position, token in enumerate(tokens):
        assert token == np.searchsorted(cumulative, uniform(42, position), side="right")


# ---- edges ---------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_equals_and_obeys_penalties():
    logits = np.float32([0, 2, 2, 1.5])
    assert sampler_of(4).sample(logits) == 1
    assert sampler_of(4, generated=[1], presence_penalty=0.1).sample(logits) == 2
    assert sampler_of(4, generated=[1, 2], presence_penalty=1).sample(logits) == 3
    assert sampler_of(4, prompt_ids=[1, 2], repetition_penalty=2).sample(logits) == 3
    assert sampler_of(4, prompt_ids=[1, 2], presence_penalty=2).sample(logits) == 1
    assert sampler_of(4, logit_bias={0: 3}).sample(logits) == 0


@every_mode
@pytest.mark.parametrize("padding", [1e9, np.nan, np.inf])
def test_padding_is_never_read(mode, padding):
    logits = np.r_[random_logits(70, seed=2), np.full(20, padding, np.float32)]
    sampler = sampler_of(70, seed=1, **mode)
    assert draws(sampler, logits, 300).max() < 70
    np.testing.assert_array_equal(sampler.distribution(logits), sampler.distribution(logits[:70]))


@every_mode
@pytest.mark.parametrize("place", [0, 63, 64, 99])
def test_faulty_logits_are_named(mode, place):
    sampler = sampler_of(100, seed=1, **mode)
    for value in (np.nan, -np.nan, np.inf):
        logits = random_logits(100, seed=3)
        logits[place] = value
        with pytest.raises(MtlqError, match=rf"token {place} is (nan|-nan|inf)"):
            sampler.sample(logits)
    assert 0 <= sampler.sample(random_logits(100, seed=3)) < 100


@every_mode
def test_a_row_without_a_choice_is_an_error(mode):
    with pytest.raises(MtlqError, match="every logit is -inf"):
        sampler_of(100, **mode).sample(np.full(100, -np.inf, np.float32))


def test_wrong_arguments_are_refused():
    sampler = sampler_of(100)
    for logits in (np.zeros(99, np.float32), np.zeros(100), np.zeros((2, 100), np.float32)):
        with pytest.raises(ValueError):
            sampler.sample(logits)
    with pytest.raises(ValueError):
        sampler.sample(np.zeros(200, np.float32)[::2])
    for token in (-1, 100):
        with pytest.raises(ValueError, match=f"token {token} "):
            sampler.accept(token)
    with pytest.raises(ValueError):
        sampler.logprobs(np.zeros(100, np.float32), 0, 1)
    with pytest.raises(RequestError, match="token 100"):
        sampler_of(100, logit_bias={100: 1.0})
    with pytest.raises(ValueError, match="token 100"):
        sampler_of(100, prompt_ids=[100], repetition_penalty=1.1)


def test_logprobs_are_those_of_the_model_itself():
    logits = random_logits(500, seed=6)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sampler = sampler_of(
        500, [3, 4], temperature=0.5, top_k=2, presence_penalty=2.0, logit_bias={9: 5}, logprobs=5
    )
    for count in (0, 1, 5, 20):
        chosen, top = sampler.logprobs(logits, 3, count)
        assert chosen == pytest.approx(expected[3], abs=1e-6)
        best = np.argsort(-expected)[:count]
        assert [token for token, _ in top] == best.tolist()
        np.testing.assert_allclose([value for _, value in top], expected[best], atol=1e-6)
