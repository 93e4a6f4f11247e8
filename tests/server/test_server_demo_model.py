"""The server over the demo model: what the whole stack says over HTTP."""

from __future__ import annotations

import threading

import httpx
import openai
import pytest
from serving import running, until

from mtlqwen import LLM
from mtlqwen.server import create_app

QUESTION = [{"role": "user", "content": "Count from 5 to 12."}]


@pytest.fixture(scope="module")
def llm():
    with LLM(ctx=2048, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def base(llm):
    with running(create_app(llm)) as base:
        yield base


@pytest.fixture(scope="module")
def client(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        yield client


def collect(chunks):
    """Content, reasoning, finish reason and usage of a stream."""
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return (
        "".join(delta.content or "" for delta in deltas),
        "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas),
        next(
            c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason
        ),
        chunks[-1].usage,
    )


@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_says_what_one_answer_says(client, thinking):
    asked = {
        "model": client.models.list().data[0].id,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 80,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}},
    }
    client.chat.completions.create(**asked)  # from here on both come from the prefix cache
    whole = client.chat.completions.create(**asked)
    options = {"include_usage": True}
    content, reasoning, reason, usage = collect(
        list(client.chat.completions.create(**asked, stream=True, stream_options=options))
    )
    message = whole.choices[0].message
    assert content == message.content
    assert reasoning == (getattr(message, "reasoning_content", None) or "")
    assert bool(reasoning) is thinking
    assert reason == whole.choices[0].finish_reason
    assert usage == whole.usage


def test_top_p_0_leaves_the_likeliest_token_alone(client):
    asked = {"model": client.models.list().data[0].id, "messages": QUESTION, "max_tokens": 12}
    sampled = client.chat.completions.create(**asked, temperature=2, top_p=0)
    greedy = client.chat.completions.create(**asked, temperature=0)
    assert sampled.choices[0].message == greedy.choices[0].message


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_that_is_cut_is_no_answer(client, stream):  # A15
    asked = {"model": None, "messages": QUESTION, "max_tokens": 3, "temperature": 0}
    asked["model"] = client.models.list().data[0].id
    if stream:
        content, reasoning, reason, _ = collect(
            list(client.chat.completions.create(**asked, stream=True))
        )
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        content, reason = choice.message.content, choice.finish_reason
        reasoning = choice.message.reasoning_content
    assert (content, reason) == ("", "length")
    assert reasoning


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_refused(base, stream):  # A8
    body = {"messages": [{"role": "user", "content": "word " * 6000}], "stream": stream}
    answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "2048" in error["message"]
    assert httpx.get(f"{base}/health").status_code == 200


def test_a_client_that_leaves_gives_everything_back(base, llm):  # A7
    body = {"messages": QUESTION, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{base}/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        next(lines)
        assert llm.engine.stats.running == 1
    until(lambda: llm.engine.stats.running == 0, limit_s=1.5)
    assert llm.engine.stats.bundles_bound == 0
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}/v1/chat/completions", json={**body, "stream": False}, timeout=0.3)
    until(lambda: llm.engine.stats.running == 0, limit_s=1.5)


def test_mixed_sampler_settings_at_once_all_succeed(base):  # A6
    bodies = [
        {"messages": [{"role": "user", "content": "word " * 1500}], "max_tokens": 4},
        {
            "messages": [{"role": "user", "content": "other " * 900}],
            "max_tokens": 4,
            "repetition_penalty": 1.2,
            "presence_penalty": 1.0,
            "logit_bias": {"100": 5},
        },
        {"messages": QUESTION, "max_tokens": 4, "temperature": 0.7, "top_k": 20, "seed": 1},
    ]
    codes = []
    threads = [
        threading.Thread(
            target=lambda body=body: codes.append(
                httpx.post(f"{base}/v1/chat/completions", json=body, timeout=60).status_code
            )
        )
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200, 200, 200]
    assert httpx.get(f"{base}/health").status_code == 200
