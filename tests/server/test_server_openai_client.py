"""The official client, against the scripted engine."""

from __future__ import annotations

import asyncio

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
THOUGHT = "Let me see.\n</think>\n\nThe answer is 42.<|im_end|>"


@pytest.fixture
def client(serve):
    served = serve(THOUGHT, app={"api_key": "k"})
    with openai.OpenAI(base_url=f"{served.base}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_it_reads_an_answer(client):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == "The answer is 42."
    assert answer.choices[0].message.reasoning_content == "Let me see."
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_it_reads_a_stream(client):
    with client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "The answer is 42."
    assert last.usage.completion_tokens > 0


def test_it_reads_plain_completions_and_models(client):
    assert client.models.list().data[0].id == "tiny"
    answer = client.completions.create(model="tiny", prompt="Once", max_tokens=3)
    assert answer.choices[0].finish_reason == "length"


def test_it_raises_its_own_errors(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_value")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="x").models.list()


def test_it_raises_an_error_that_comes_in_a_stream(serve):
    served = serve(lambda ids, params: [65] * 10_000, step_s=0.002)
    client = openai.OpenAI(base_url=f"{served.base}/v1", api_key="k", max_retries=0)
    with (
        client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as stream,
        pytest.raises(openai.APIError, match="device is lost"),
    ):
        for _ in stream:
            served.engine.die()


def test_its_asyncio_form_runs_many_at_once(serve):
    served = serve(THOUGHT)

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.base}/v1", api_key="k") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model="tiny", messages=MESSAGES)
                    for _ in range(16)
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask_all()) == ["The answer is 42."] * 16
