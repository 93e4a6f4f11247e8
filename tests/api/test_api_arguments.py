"""Arguments that are not what they should be: told by name, with the value, before they do harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from api_model import user

from mtlqwen import LLM, SamplingParams
from mtlqwen.engine import Engine
from mtlqwen.errors import MtlqError, RequestError

ONE_TOKEN = SamplingParams(max_tokens=1)
WRONG_INTEGERS = ["2", True, -1, 1.5, 10**30]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [5, b"x", ""]),
        ("drafter", [5, b"x", True, ""]),
        ("prefix_cache_dir", [5, b"x", ""]),
        ("device", [5, None, b"cpu"]),
        ("threads", [*WRONG_INTEGERS, None, 1025, 1 << 40]),
        ("ctx", [*WRONG_INTEGERS, 0, float("nan")]),
        ("max_slots", ["2", True, -1, 1.5, None, 0]),
        ("pass_tokens", [*WRONG_INTEGERS, None, 0]),
        ("kv_memory", ["1G", True, -1, 1.5, 0, 100]),
        ("prefix_memory", ["1G", *WRONG_INTEGERS, 100]),
        ("draft", [5, True, "", ["ngram"]]),
    ],
)
def test_a_setting_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(MtlqError, match=name) as refused:
            LLM(**{"ctx": 256, "threads": 1, name: value})
        assert str(value) in str(refused.value)


def test_a_directory_for_a_cache_that_is_off_is_refused(tmp_path):
    with pytest.raises(MtlqError, match=r"prefix_cache_dir .* has no effect with prefix_memory 0"):
        LLM(ctx=256, threads=1, prefix_memory=0, prefix_cache_dir=tmp_path)


@pytest.mark.parametrize("width", [*WRONG_INTEGERS, 16])
def test_a_draft_width_is_refused_by_name(width):
    with pytest.raises(MtlqError, match=f"draft_width is {width!r}; .* from 0 to 15"):
        LLM(ctx=256, threads=1, draft="ngram", draft_width=width)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        b"x",
        bytearray(b"x"),
        Path("x"),
        {"role": "user", "content": "x"},
        {1, 2},
        iter([1, 2]),
        ("one", "two"),
        [None],
        [1, 2**70],
        np.zeros((2, 2), int),
        np.array(5),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_what_is_no_prompt_is_refused(llm, prompt):
    for ask in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match="it must be text, a list of messages"):
            ask(prompt, ONE_TOKEN)
    with pytest.raises(RequestError, match="the prompt is"):
        llm.generate(["a prompt", prompt], ONE_TOKEN)


def test_a_stream_takes_one_prompt(llm):
    for prompts in (["one", "two"], [[1], [2, 3]]):
        with pytest.raises(RequestError, match=r"the prompt is \["):
            llm.stream(prompts, ONE_TOKEN)


@pytest.mark.parametrize("params", [{}, {"max_tokens": 3}, 0, "x", SamplingParams])
def test_what_is_no_sampling_params_is_refused(llm, params):
    with pytest.raises(RequestError, match=r"params is .*it must be a SamplingParams"):
        llm.generate("x", params)
    with pytest.raises(RequestError, match="params"):
        llm.engine.submit([1], params, on_output=print)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("thinking", [0, "no"]),
        ("raw", [1, "yes", None]),
        ("template_kwargs", [5, [("a", 1)], {5: 1}]),
    ],
)
def test_a_keyword_is_refused_by_name(llm, name, values):
    for value in values:
        with pytest.raises(RequestError, match=f"{name} is .*; it must be"):
            llm.generate(user("x"), ONE_TOKEN, **{name: value})


def test_thinking_by_the_templates_name_is_on_or_off_too(llm):
    with pytest.raises(RequestError, match="enable_thinking is 'no'; it must be true or false"):
        llm.generate("x", ONE_TOKEN, template_kwargs={"enable_thinking": "no"})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prompt", ["abc", b"x", None]),
        ("checkpoints", [5, None, "x", ["x"], [1.5], [True], [0], [4]]),
        ("stop_ids", [5, None, "x", ["x"], [1.5], [-1]]),
        ("on_output", [5, None]),
    ],
)
def test_the_engine_refuses_by_name_and_goes_on(llm, name, values):
    for value in values:
        ids, keywords = [1, 2, 3], {"on_output": print, name: value}
        with pytest.raises(RequestError, match=name) as refused:
            llm.engine.submit(keywords.pop("prompt", ids), ONE_TOKEN, **keywords)
        assert refused.value.param == name
    assert llm.generate("x", ONE_TOKEN).finish_reason == "length"


def test_cancelling_what_was_never_submitted_leaves_the_engine_alive(llm):
    for request in (None, 5):
        with pytest.raises(RequestError, match="request is"):
            llm.engine.cancel(request)
    assert llm.generate("x", ONE_TOKEN).finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("policy", [2, -1, "x", True, float("nan")]),
        ("prefix_chunk_tokens", [0, -5, 1.5, "x", True]),
    ],
)
def test_the_engine_refuses_settings_by_name(llm, name, values):
    for value in values:
        with pytest.raises(MtlqError, match=f"{name} is {value!r}"):
            Engine(llm.engine.runner, **{name: value})
