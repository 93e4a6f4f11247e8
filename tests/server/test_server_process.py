"""The server as a process: signals, and a port that is taken."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
from fastapi import FastAPI

from mtlqwen.server import run

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def process(heed_signals):
    script = Path(__file__).with_name("fake_server.py")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=heed_signals,
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(process, number):
    base = f"http://127.0.0.1:{int(process.stdout.readline())}"
    with httpx.stream(
        "POST", f"{base}/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(number)
        events = [line[6:] for line in lines if line.startswith("data: ")]
    assert len(events) > 5  # the answer went on for the grace period; without one 3 at most
    assert json.loads(events[-1])["error"]["code"] == "server_stopping"
    rest, errors = process.communicate(timeout=20)
    assert (rest, process.returncode) == ("closed\n", 0)
    assert errors == ""


def test_clients_close_idle_connections_before_the_server_does(monkeypatch):
    configs = []
    monkeypatch.setattr(run._Server, "run", lambda server, sockets: configs.append(server.config))
    for module, name in ((run.sys, "setswitchinterval"), (run.gc, "freeze")):
        monkeypatch.setattr(module, name, lambda *args: None)
    run.run(FastAPI(), None, lambda: None)
    assert configs[0].timeout_keep_alive > openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry


def test_a_client_that_leaves_within_its_body_is_not_an_error_of_the_server(process):
    port = int(process.stdout.readline())
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f'{head}Content-Length: 100\r\n\r\n{{"messages"'.encode())
        time.sleep(0.1)  # so that its request has begun
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert errors == ""


def test_a_port_that_is_taken_is_an_error():
    with run.bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(OSError):
            run.bind("127.0.0.1", first.getsockname()[1])
