"""Starts a server over a scripted engine, on a free loopback port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fake_engine import FakeEngine

from mtlqwen.chat import ChatTemplate
from mtlqwen.llm import LLM
from mtlqwen.server import create_app
from mtlqwen.server.run import bind
from mtlqwen.tokenizer import Tokenizer


@dataclass
class Served:
    """A running server, what it serves, and a client of it."""

    base: str
    llm: LLM
    engine: FakeEngine
    http: httpx.Client

    def chat(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)

    def events(self, path: str = "/v1/chat/completions", **body: Any) -> list[str]:
        """The data of each event of a stream."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            response.raise_for_status()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Serves `app` in a thread; its address."""
    with bind("127.0.0.1", 0) as listener:
        listener.listen()  # clients may connect before the thread gets that far
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(demo_text: tuple[Tokenizer, ChatTemplate]) -> Iterator[Callable[..., Served]]:
    """What starts a server whose engine says `answer`: a text, token ids, or a script."""
    tokenizer, template = demo_text
    stack = ExitStack()

    def start(answer: Any, *, app: dict[str, Any] | None = None, **engine: Any) -> Served:
        ids = tokenizer.encode(answer, control=True) if isinstance(answer, str) else answer
        fake = FakeEngine(ids if callable(ids) else lambda prompt, params: ids, **engine)
        fake.start()
        llm = stack.enter_context(LLM.over(fake, tokenizer, template, "tiny"))
        base = stack.enter_context(running(create_app(llm, **(app or {}))))
        client = stack.enter_context(httpx.Client(base_url=base, timeout=20))
        return Served(base, llm, fake, client)

    with stack:
        yield start


def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Waits for `condition`; fails when it does not come true."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)
