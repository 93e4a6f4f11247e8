"""Clients that leave, engines that die, servers that stop."""

from __future__ import annotations

import json
import threading

import httpx
import pytest
from serving import until

MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = {"messages": MESSAGES, "max_tokens": 8000, "ignore_eos": True}


def endless(ids, params):
    return [65] * 100_000


def test_a_stream_whose_client_leaves_is_cancelled(serve):  # A7
    served = serve(endless, step_s=0.002)
    with served.http.stream(
        "POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        next(lines)
        assert served.engine.requests
    until(lambda: not served.engine.requests, limit_s=1)


@pytest.mark.parametrize("delay_s", [0, 60])
def test_an_answer_whose_client_leaves_is_cancelled(serve, delay_s):  # A7
    served = serve(endless, step_s=0.01, delay_s=delay_s, max_context=100_000)
    with pytest.raises(httpx.ReadTimeout):
        served.http.post("/v1/chat/completions", json=ENDLESS, timeout=0.3)
    until(lambda: not served.engine.requests, limit_s=1)
    served.engine.delay_s = 0
    assert served.chat(messages=MESSAGES, max_tokens=2).status_code == 200


def test_a_stream_that_has_not_begun_is_cancelled_too(serve):
    served = serve(endless, delay_s=60)
    with pytest.raises(httpx.ReadTimeout):
        served.http.post("/v1/chat/completions", json={**ENDLESS, "stream": True}, timeout=0.3)
    until(lambda: not served.engine.requests, limit_s=1)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_wait_for_a_dead_engine_fail(serve, stream):  # A6
    served = serve(endless, delay_s=60)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(served.chat(messages=MESSAGES, stream=stream))
    )
    asking.start()
    until(lambda: len(served.engine.requests) == 1)
    served.engine.die()
    asking.join()
    assert answers[0].status_code == 500
    assert "device is lost" in answers[0].json()["error"]["message"]
    assert served.http.get("/health").status_code == 503
    assert served.chat(messages=MESSAGES).status_code == 503


def test_a_stream_that_has_begun_ends_with_an_error_event(serve):
    served = serve(endless, step_s=0.002)
    with served.http.stream(
        "POST", "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        served.engine.die()
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert "device is lost" in json.loads(data[-1])["error"]["message"]


def test_closing_the_engine_ends_what_runs(serve):
    served = serve(endless, step_s=0.002, max_context=100_000)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(served.chat(**ENDLESS)))
    asking.start()
    until(lambda: len(served.engine.requests) == 1)
    served.engine.close()
    asking.join()
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "server_stopping"
