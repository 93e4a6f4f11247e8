"""`LLM`: the forms of a prompt, streams, asyncio, cancellation, refusals."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import numpy as np
import pytest
from api_model import user, words

from mtlqwen import LLM, SamplingParams
from mtlqwen.errors import ModelError, MtlqError, RequestError
from mtlqwen.load import demo_model_path

GREEDY = SamplingParams(max_tokens=8)
ENDLESS = SamplingParams(ignore_eos=True)
QUESTION = "What is 17 + 25?"


def until_idle(llm: LLM, limit_s: float = 5.0) -> None:
    end_s = time.monotonic() + limit_s
    while llm.engine.stats.running + llm.engine.stats.waiting:
        assert time.monotonic() < end_s, "a request is still running"
        time.sleep(0.005)


def test_the_forms_of_a_prompt_mean_the_same(llm):
    rendered = llm.prompt(QUESTION)
    forms = [QUESTION, user(QUESTION), rendered.ids, np.array(rendered.ids), rendered]
    answers = [llm.generate(form, GREEDY).token_ids for form in forms]
    answers.append(llm.generate(rendered.text, GREEDY, raw=True).token_ids)
    assert all(ids == answers[0] for ids in answers)


def test_many_prompts_give_many_answers_in_order(llm):
    questions = ["Count from 1 to 3.", QUESTION]
    many = llm.generate(questions, GREEDY)
    assert [one.token_ids for one in many] == [llm.generate(q, GREEDY).token_ids for q in questions]


def test_a_raw_prompt_keeps_the_think_tags_as_text(llm):
    rendered = llm.prompt("Count from 5 to 12.")
    params = SamplingParams(max_tokens=60)
    chat, raw = llm.generate(rendered, params), llm.generate(rendered.text, params, raw=True)
    assert chat.reasoning and chat.text
    assert raw.reasoning == ""
    assert "</think>" in raw.text


def test_a_stream_says_what_generate_says(llm):
    params = SamplingParams(max_tokens=60)
    whole = llm.generate(QUESTION, params)
    with llm.stream(QUESTION, params) as stream:
        parts = {"content": "", "reasoning": ""}
        for delta in stream:
            parts[delta.kind] += delta.text
    assert (parts["content"], parts["reasoning"]) == (whole.text, whole.reasoning)


def test_what_was_read_so_far_stays_what_it_was(llm):
    with llm.stream(QUESTION, SamplingParams(max_tokens=20, logprobs=1, ignore_eos=True)) as stream:
        next(stream)
        early = stream.partial()
        num_tokens = len(early.token_ids)
        assert len(stream.completion().token_ids) == 20
    assert num_tokens == len(early.token_ids) == len(early.logprobs) < 20


def test_the_figures_are_there(llm):
    done = llm.generate(QUESTION, SamplingParams(max_tokens=20, ignore_eos=True))
    assert done.generated_tokens == 20
    assert done.prompt_tokens == len(llm.prompt(QUESTION).ids)
    assert done.time_to_first_token_s > 0
    assert done.generate_tokens_per_second > 0


@pytest.mark.parametrize(
    ("prompt", "keywords"),
    [
        ([1, 2], {"thinking": False}),
        ("x", {"raw": True, "thinking": True}),
        ("x", {"raw": True, "template_kwargs": {"enable_thinking": False}}),
        (user("x"), {"raw": True}),
        ("x", {"template_kwargs": {"tools": []}}),
        ("x", {"template_kwargs": {"limit": 3}}),
    ],
)
def test_a_keyword_without_effect_is_refused(llm, prompt, keywords):
    with pytest.raises(RequestError):
        llm.generate(prompt, GREEDY, **keywords)


def test_logprobs_come_with_every_token(llm):
    done = llm.generate(QUESTION, SamplingParams(max_tokens=5, logprobs=3))
    assert len(done.logprobs) == done.generated_tokens
    for token, (logprob, most_likely) in zip(done.token_ids, done.logprobs, strict=True):
        assert len(most_likely) == 3
        assert most_likely[0] == (token, logprob)
    assert llm.generate(QUESTION, GREEDY).logprobs is None


def test_closing_or_dropping_a_stream_frees_its_slot(llm):
    with llm.stream(QUESTION, ENDLESS) as stream:
        next(stream)
    until_idle(llm)
    stream = llm.stream(QUESTION, ENDLESS)
    next(stream)
    del stream
    gc.collect()
    until_idle(llm)


def test_asyncio_runs_many_and_cancels_with_the_task(llm):
    async def scenario() -> None:
        questions = [QUESTION, "Count from 1 to 3."]
        many = await llm.agenerate(questions, GREEDY)
        assert [one.token_ids for one in many] == [
            llm.generate(question, GREEDY).token_ids for question in questions
        ]
        stream = await llm.astream(QUESTION, GREEDY)
        assert "".join([d.text async for d in stream if d.kind == "reasoning"]) == many[0].reasoning
        endless = asyncio.create_task(llm.agenerate([QUESTION, QUESTION], ENDLESS))
        await asyncio.sleep(0.1)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless

    asyncio.run(scenario())
    until_idle(llm)


def test_an_asyncio_stream_that_is_dropped_frees_its_slot(llm):
    async def scenario() -> None:
        async for _ in await llm.astream(QUESTION, ENDLESS):
            break

    asyncio.run(scenario())
    gc.collect()
    until_idle(llm)


def test_an_event_loop_that_has_ended_is_let_go(llm):
    async def scenario() -> weakref.ref:
        await llm.agenerate(QUESTION, GREEDY)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(scenario())
    gc.collect()
    assert loop() is None


@pytest.mark.parametrize(
    ("prompt", "raw", "words_of_the_error"),
    [
        ("", True, "no tokens"),
        ([], False, "no tokens"),
        ([4096], False, "4096"),
        ([-1], False, "-1"),
        ([1.5], False, "token ids"),
        ([{"role": "robot", "content": "x"}], False, "template"),
        (user(words(9000)), False, "8192"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(llm, prompt, raw, words_of_the_error):
    with pytest.raises(RequestError, match=words_of_the_error):
        llm.generate(prompt, GREEDY, raw=raw)


def test_one_bad_prompt_among_many_runs_none(llm):
    with pytest.raises(RequestError):
        llm.generate([[1, 2, 3], [99999]], ENDLESS)
    until_idle(llm)


def test_a_prompt_one_short_of_the_context_yields_one_token():  # A8
    with LLM(ctx=256) as llm:
        for max_tokens in (None, 50):
            done = llm.generate([65] * 255, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
            assert (done.generated_tokens, done.finish_reason) == (1, "length")
        with pytest.raises(RequestError, match="256") as refused:
            llm.generate([65] * 256)
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("raw", [False, True])
def test_a_text_far_beyond_the_context_is_refused_without_counting_it(llm, raw):
    with pytest.raises(RequestError, match=r"more than 8191 tokens.* exceeds the 8192") as refused:
        llm.prompt("word " * 2_000_000, raw=raw)
    assert refused.value.code == "context_length_exceeded"


def test_the_context_is_what_the_kv_memory_holds_where_that_is_less():
    with LLM(ctx=1024, threads=1) as llm:
        assert llm.max_context == 1024
        bundle_bytes = llm.engine.runner.bundle_bytes
    with LLM(ctx=1024, kv_memory=2 * bundle_bytes, threads=1) as llm:
        assert llm.max_context == 256
        with pytest.raises(RequestError, match="exceeds the 256 that fit"):
            llm.generate("word " * 1000)


def test_settings_that_cannot_hold_are_refused(tmp_path):
    with pytest.raises((ModelError, OSError), match=r"drafter\.gguf"):
        LLM(drafter="drafter.gguf")
    with pytest.raises(ModelError, match="no DFlash drafter"):
        LLM(drafter=demo_model_path())
    with pytest.raises(MtlqError, match="has no effect with draft='ngram'"):
        LLM(drafter="demo", draft="ngram")
    with pytest.raises(MtlqError, match="needs a drafter file"):
        LLM(draft="dflash")
    with pytest.raises(MtlqError, match="no effect without a drafter"):
        LLM(draft_width=3)
    with pytest.raises(MtlqError, match="from 0 to 15"):
        LLM(draft="ngram", draft_width=16)
    with pytest.raises(MtlqError, match="'eagle' is unknown"):
        LLM(draft="eagle")
    with pytest.raises(MtlqError, match="9 slots do not fit passes of 8 tokens"):
        LLM(max_slots=9, pass_tokens=8)
    with pytest.raises(MtlqError, match="16384"):
        LLM(ctx=1_000_000)
    with pytest.raises((ModelError, OSError), match=r"missing\.gguf"):
        LLM(tmp_path / "missing.gguf")


def test_close_may_be_called_twice_and_ends_what_runs():
    with LLM(ctx=256, threads=1) as llm:
        stream = llm.stream(QUESTION, ENDLESS)
        next(stream)
        llm.close()
        assert stream.completion().finish_reason == "cancelled"
    with pytest.raises(MtlqError, match="closed"):
        llm.generate(QUESTION)
