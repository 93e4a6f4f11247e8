"""What goes over the wire, with a scripted engine."""

from __future__ import annotations

import json

import httpx
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
END = "<|im_end|>"
THOUGHT = f"Let me see.\n</think>\n\nThe answer is 42.{END}"


def test_one_answer_has_openai_s_shape(serve):
    served = serve(THOUGHT, cached_tokens=3)
    body = served.chat(model="tiny", messages=MESSAGES).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "The answer is 42.",
        "reasoning_content": "Let me see.",
    }
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
def test_a_stream_says_what_one_answer_says(serve, tokens_per_step):
    served = serve(THOUGHT, tokens_per_step=tokens_per_step)
    whole = served.chat(messages=MESSAGES).json()["choices"][0]
    *events, done = served.events(messages=MESSAGES)
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    for member in ("content", "reasoning_content"):
        assert "".join(d.get(member) or "" for d in deltas) == whole["message"][member]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_comes_once_and_only_when_asked_for(serve):  # A17
    served = serve(THOUGHT)
    for options in ({}, {"stream_options": {"include_usage": False}}):
        events = served.events(messages=MESSAGES, max_tokens=5, **options)
        assert not any("usage" in json.loads(event) for event in events[:-1])
    *events, done = served.events(
        messages=MESSAGES, max_tokens=5, stream_options={"include_usage": True}
    )
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert [bool(chunk.get("usage")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []
    whole = served.chat(messages=MESSAGES, max_tokens=5).json()["usage"]
    assert chunks[-1]["usage"] == whole
    assert whole["completion_tokens"] == 5
    assert sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_that_is_cut_is_no_answer(serve, stream):  # A15
    served = serve("thoughts " * 50)
    if stream:
        chunks = [
            json.loads(event) for event in served.events(messages=MESSAGES, max_tokens=20)[:-1]
        ]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        content = "".join(d.get("content") or "" for d in deltas)
        reasoning = "".join(d.get("reasoning_content") or "" for d in deltas)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = served.chat(messages=MESSAGES, max_tokens=20).json()["choices"][0]
        content, reason = choice["message"]["content"], choice["finish_reason"]
        reasoning = choice["message"]["reasoning_content"]
    ids = served.llm.tokenizer.encode("thoughts " * 50)[:20]
    assert (content, reason) == ("", "length")
    assert reasoning == served.llm.tokenizer.decode(ids)


def test_characters_of_several_tokens_arrive_whole(serve):  # A3
    text = "ďábelské 👩‍👩‍👧‍👦 🇨🇿 日本語 ﷽ e\u0301 \u200d end"
    for tokens_per_step in (1, 2, 3, 7):
        served = serve(text + END, tokens_per_step=tokens_per_step)
        asked = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}
        events = served.events(**asked)[:-1]
        pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == served.chat(**asked).json()["choices"][0]["message"]["content"]
        assert "".join(pieces) == served.llm.tokenizer.decode(served.llm.tokenizer.encode(text))


@pytest.mark.parametrize("stop", ["fox jum", ["fox jum", "zzz"], ["never", "fox jum"]])
def test_a_stop_string_ends_the_answer_before_it(serve, stop):  # A4
    served = serve("The quick brown fox jumps over the lazy dog")
    asked = {"messages": MESSAGES, "stop": stop, "chat_template_kwargs": {"enable_thinking": False}}
    whole = served.chat(**asked).json()["choices"][0]
    assert whole["message"]["content"] == "The quick brown "
    assert whole["finish_reason"] == "stop"
    chunks = [json.loads(event) for event in served.events(**asked)[:-1]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == "The quick brown "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_that_never_completes_is_given_back(serve):
    served = serve("The quick brown fox" + END)
    asked = {
        "messages": MESSAGES,
        "stop": "foxes",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert served.chat(**asked).json()["choices"][0]["message"]["content"] == "The quick brown fox"


def test_a_stop_string_frees_the_slot(serve):
    served = serve(lambda ids, params: [65] * 2000, step_s=0.001)
    a = served.llm.tokenizer.decode([65] * 3)
    answer = served.chat(
        messages=MESSAGES, stop=a, chat_template_kwargs={"enable_thinking": False}
    ).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert not served.engine.requests


def test_plain_completions_take_text_and_ids(serve):
    served = serve(" and so on" + END)
    ids = served.llm.tokenizer.encode("Once<|im_start|>", control=True)
    for prompt in ("Once<|im_start|>", ids, ["Once<|im_start|>"], [ids]):
        body = served.http.post("/v1/completions", json={"prompt": prompt}).json()
        assert body["object"] == "text_completion"
        assert body["choices"][0]["text"] == " and so on"
    assert {tuple(given) for given, _ in served.engine.submitted} == {tuple(ids)}
    assert {params.max_tokens for _, params in served.engine.submitted} == {16}
    events = served.events("/v1/completions", prompt="Once")
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == " and so on"


def test_parameters_reach_the_engine(serve):
    served = serve(END)
    given = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "seed": 7,
    }
    served.chat(
        messages=MESSAGES, stop=["a", "b"], logit_bias={"100": 5}, max_completion_tokens=9, **given
    ).raise_for_status()
    _, params = served.engine.submitted[0]
    assert {name: getattr(params, name) for name in given} == given
    assert params.stop == ("a", "b")
    assert dict(params.logit_bias) == {100: 5}
    assert params.max_tokens == 9


def test_without_parameters_openai_s_defaults_hold(serve):
    served = serve(END)
    served.chat(messages=MESSAGES, temperature=None).raise_for_status()
    _, params = served.engine.submitted[0]
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 1.0, None)


def test_models_are_listed_by_name_and_alias(serve):
    served = serve(END, app={"aliases": ["gpt-4o"]})
    listed = served.http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny", "gpt-4o"]
    assert served.http.get("/v1/models/gpt-4o").json()["context_length"] == 2048
    assert served.chat(model="gpt-4o", messages=MESSAGES).json()["model"] == "gpt-4o"
    assert served.http.get("/health").json() == {"status": "ok"}


def test_content_may_be_a_list_of_texts(serve):
    served = serve(END)
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    for content in ("hi", parts):
        served.chat(messages=[{"role": "user", "content": content}]).raise_for_status()
    first, second = (ids for ids, _ in served.engine.submitted)
    assert first == second


def test_silence_before_the_first_token_is_filled_with_comments(serve, monkeypatch):
    monkeypatch.setattr("mtlqwen.server.reply.KEEP_ALIVE_S", 0.02)
    served = serve("x" + END, delay_s=0.1)
    with served.http.stream(
        "POST", "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
    ) as response:
        lines = list(response.iter_lines())
    assert lines[0] == ": keep-alive"
    assert lines[-2] == "data: [DONE]"


def test_two_requests_do_not_wait_for_one_another(serve):
    served = serve(lambda ids, params: [65] * 200, step_s=0.002)
    with (
        httpx.Client(base_url=served.base) as other,
        served.http.stream(
            "POST", "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
        ) as long,
    ):
        lines = long.iter_lines()
        next(lines)
        short = other.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2})
        assert short.json()["usage"]["completion_tokens"] == 2
        assert sum(line.startswith("data: ") for line in lines) > 2
