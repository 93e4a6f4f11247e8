"""The same tokens alone, in company, warm or cold; the oracle is the lone, cold answer."""

from __future__ import annotations

import random

import pytest
from api_model import user, words

from mtlqwen import SamplingParams

# tokens of the prompts: around the borders of blocks, passes and prefix chunks
LENGTHS = [1, 2, 3, 17, 31, 64, 127, 128, 129, 200, 255, 256, 300, 511, 512, 700]


@pytest.fixture(scope="module")
def solo(cold_llm):
    """For each of sixteen prompts the tokens it gets alone."""
    draw = random.Random(0)
    prompts = [draw.choices(range(cold_llm.tokenizer.num_tokens), k=n) for n in LENGTHS]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    return [(prompt, cold_llm.generate(prompt, params).token_ids) for prompt in prompts]


def test_sixteen_at_once_on_eight_slots_each_get_their_own_answer(llm, solo):  # A1
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    shuffled = random.Random(1)
    for _ in range(2):
        order = shuffled.sample(range(len(solo)), len(solo))
        done = llm.generate([solo[i][0] for i in order], params)
        assert [one.token_ids for one in done] == [solo[i][1] for i in order]


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8])
def test_neighbours_that_end_early_or_come_late_change_nothing(llm, cold_llm, batch):  # A2
    limits = [1, 2, 5, 20, 50, 7, 33, 40][:batch]
    prompts = [user(f"{i} {words(3, i)}") for i in range(batch + 1)]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in [*limits, 30]]
    streams = [llm.stream(p, s, thinking=False) for p, s in zip(prompts[:-1], params, strict=False)]
    next(streams[0], None)
    streams.append(llm.stream(prompts[-1], params[-1], thinking=False))
    for prompt, param, stream in zip(prompts, params, streams, strict=True):
        assert stream.completion().token_ids == (
            cold_llm.generate(prompt, param, thinking=False).token_ids
        )


def test_a_stop_string_cuts_exactly_there_at_any_token_boundary(llm):  # A4
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    prompt = user("Tell me a story about a fox and a lantern.")
    full = llm.generate(prompt, params, thinking=False)
    ends = [len(llm.tokenizer.decode(full.token_ids[:n])) for n in (5, 23, 41, 59)]
    for end in ends:
        stop = full.text[end - 3 : end + 4]
        for stops in (stop, (stop, "zzz")):
            cut = SamplingParams(max_tokens=80, ignore_eos=True, stop=stops)
            with llm.stream(prompt, cut, thinking=False) as stream:
                streamed = "".join(delta.text for delta in stream)
                done = stream.completion()
            assert streamed == done.text == full.text[: full.text.index(stop)]
            assert (done.finish_reason, done.stop) == ("stop", stop)
            assert done.token_ids == full.token_ids[: len(done.token_ids)]


def test_equal_seeds_equal_answers_and_none_differ(llm):  # A5
    def say(seed):
        params = SamplingParams(temperature=1.5, max_tokens=25, seed=seed, ignore_eos=True)
        return tuple(llm.generate(user("cat"), params).token_ids)

    assert say(11111) == say(11111)
    assert len({say(11111), say(22222), say(33333)}) == 3
    assert len({say(None) for _ in range(3)}) == 3


def test_seeds_hold_in_company(llm):  # A5
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=20, seed=5, ignore_eos=True)
    alone = llm.generate(user("cat"), params).token_ids
    together = llm.generate([user("cat"), user("dog"), user("cat")], params)
    assert together[0].token_ids == together[2].token_ids == alone


def test_sampler_settings_mix_without_harm(llm, cold_llm):  # A6
    plain = SamplingParams(max_tokens=16)
    long = user(words(400))
    x = llm.stream(long, plain)
    y = llm.stream(
        user(words(250, 3)),
        SamplingParams(
            max_tokens=16, repetition_penalty=1.2, presence_penalty=1.0, logit_bias={100: 5}
        ),
    )
    z = llm.stream(user("hi"), plain)
    assert z.completion().token_ids == cold_llm.generate(user("hi"), plain).token_ids
    assert x.completion().token_ids == cold_llm.generate(long, plain).token_ids
    assert y.completion().generated_tokens == 16
    assert llm.engine.alive


def test_a_prompt_asked_again_comes_from_the_prefix_cache(llm, cold_llm):  # A19
    prompt = user(words(500, salt=5))
    params = SamplingParams(max_tokens=12)
    first, second = llm.generate(prompt, params), llm.generate(prompt, params)
    cold = cold_llm.generate(prompt, params)
    assert cold.cached_tokens == 0
    assert second.cached_tokens >= (second.prompt_tokens - 1) // 512 * 512
    assert first.token_ids == second.token_ids == cold.token_ids


def test_each_turn_of_a_chat_restarts_from_the_one_before(llm, cold_llm):  # A19
    params = SamplingParams(max_tokens=40)
    messages = user(f"{words(60, salt=3)} Count from 5 to 12.")
    num_before = 0
    for question in ("What is 17 + 25?", "Count from 1 to 5.", None):
        done = llm.generate(messages, params, thinking=False)
        cold = cold_llm.generate(messages, params, thinking=False)
        assert done.token_ids == cold.token_ids
        # All but the last turn's answer as it is rendered now, and the generation prompt before it.
        assert done.cached_tokens >= num_before - 16
        num_before = done.prompt_tokens
        if question is not None:
            messages = [*messages, {"role": "assistant", "content": done.text}, *user(question)]
