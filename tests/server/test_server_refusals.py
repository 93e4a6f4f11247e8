"""Every request that cannot be served gets OpenAI's error object, before any event of a stream."""

from __future__ import annotations

import json
import os

import pytest
from pydantic import ValidationError
from serving import serving

from mtlqwen.errors import MtlqError, RequestError
from mtlqwen.server import create_app
from mtlqwen.server.schema import MAX_MESSAGES, MAX_TOKENS, ChatRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "hi"}]
END = "<|im_end|>"


@pytest.fixture(scope="module")
def quiet(demo_text):
    """A server that answers nothing here."""
    with serving(demo_text) as start:
        yield start(END)


def error_of(response, status: int) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return error


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"foo": 1}, "foo", "unknown_parameter"),
        ({"foo": None}, "foo", "unknown_parameter"),
        ({"tools": []}, "tools", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"user": "me"}, "user", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"logprobs": True}, "logprobs", "unsupported_value"),
        ({"top_logprobs": 3}, "top_logprobs", "unsupported_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 1.5}, "top_p", "invalid_value"),
        ({"top_k": 1 << 40}, "top_k", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_value"),
        ({"stop": [1]}, "stop[0]", "invalid_value"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"3" * 5000: 1}}, "logit_bias", "invalid_value"),
        ({"stream": False, "stream_options": {}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "name": "me"}]},
            "messages[0].name",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_parameter_is_refused_by_name(quiet, body, param, code, stream):
    error = error_of(quiet.chat(**{"messages": MESSAGES, "stream": stream, **body}), 400)
    assert (error["param"], error["code"]) == (param, code), error
    assert not quiet.engine.submitted


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * 1000},
        {"messages": [{"role": "user", "content": [1] * 1000}]},
        {"messages": MESSAGES, "stop": [1] * 1000},
        {"messages": MESSAGES, "logit_bias": dict.fromkeys(map(str, range(1000)), "x")},
        {"messages": MESSAGES, **dict.fromkeys(map(str, range(1000)), 1)},
        {"prompt": [1] * 1000 + ["x"]},
        {"prompt": ["x"] * 1000 + [1]},
        {"prompt": [["x"]] * 1000},
    ],
)
def test_few_of_many_faults_are_collected(body):
    schema = CompletionRequest if "prompt" in body else ChatRequest
    try:
        schema.model_validate(body).sampling_params()
    except ValidationError as error:
        assert error.error_count() <= 5
    except RequestError:
        pass
    else:
        pytest.fail("it was accepted")


def test_a_list_that_is_too_long_is_told_so(quiet):
    part = {"type": "text", "text": "x"}
    for path, body in (
        ("/v1/completions", {"prompt": [1] * (MAX_TOKENS + 1)}),
        ("/v1/chat/completions", {"messages": MESSAGES * (MAX_MESSAGES + 1)}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [part] * (MAX_MESSAGES + 1)}]},
        ),
    ):
        assert "at most" in error_of(quiet.http.post(path, json=body), 400)["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b'{"messages": "\xff"}', 400),
        (b'{"messages": ' + b"[" * 100_000, 400),
        (b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}', 400),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(quiet, body, status):
    headers = {"content-type": "application/json"}
    error_of(quiet.http.post("/v1/chat/completions", content=body, headers=headers), status)


def test_a_fault_of_the_whole_body_is_told_as_such(quiet):
    assert error_of(quiet.http.post("/v1/completions", json=[]), 400)["message"].startswith("the b")


def test_the_media_type_may_be_written_in_capitals(quiet):
    body, headers = json.dumps({"messages": MESSAGES}), {"content-type": "Application/JSON"}
    answer = quiet.http.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200


def test_a_web_page_s_form_is_refused(quiet):
    body = json.dumps({"messages": MESSAGES})
    error_of(quiet.http.post("/v1/chat/completions", content=body), 415)


def test_an_empty_api_key_protects_nothing_and_is_refused(quiet):
    with pytest.raises(MtlqError, match="API key is empty"):
        create_app(quiet.llm, api_key="")


def test_a_body_without_end_is_refused(serve, monkeypatch):
    monkeypatch.setattr("mtlqwen.server.app.MAX_BODY_BYTES", 1000)
    served = serve(END)
    error = error_of(served.chat(messages=[{"role": "user", "content": "x" * 1000}]), 413)
    assert "1000 bytes" in error["message"]
    assert served.chat(messages=MESSAGES).status_code == 200


def test_unknown_paths_methods_and_models_get_error_objects(quiet):
    error_of(quiet.http.get("/v1/nothing"), 404)
    error_of(quiet.http.get("/v1/chat/completions"), 405)
    assert error_of(quiet.http.get("/v1/models/x"), 404)["code"] == "model_not_found"
    error = error_of(quiet.chat(model="gpt-5", messages=MESSAGES), 404)
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


@pytest.mark.parametrize("key", ["secrét".encode(), b"\xff"])
def test_the_key_is_asked_for_in_either_header(serve, key):
    served = serve(END, app={"api_key": os.fsdecode(key)})
    assert error_of(served.http.get("/v1/models"), 401)["code"] == "invalid_api_key"
    for headers in ([("authorization", b"Bearer " + key)], [("x-api-key", key)]):
        assert served.http.get("/v1/models", headers=headers).status_code == 200
    wrong = [("authorization", b"Bearer " + key + b"x")]
    error_of(served.http.post("/v1/chat/completions", headers=wrong, json={}), 401)
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_refused(serve, stream):  # A8
    served = serve(lambda ids, params: [65] * 3000, max_context=256)
    error = error_of(
        served.chat(messages=[{"role": "user", "content": "word " * 600}], stream=stream), 400
    )
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]


@pytest.mark.parametrize("given", [{}, {"max_tokens": 50}])
def test_a_prompt_one_short_of_the_context_yields_one_token(serve, given):  # A8
    served = serve(lambda ids, params: [65] * 300, max_context=256)
    error_of(served.http.post("/v1/completions", json={"prompt": [65] * 256}), 400)
    body = served.http.post("/v1/completions", json={"prompt": [65] * 255, **given}).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 1


def test_several_prompts_in_one_request_are_refused(quiet):
    for prompt in (["a", "b"], [[1], [2]], []):
        error_of(quiet.http.post("/v1/completions", json={"prompt": prompt}), 400)
