"""An engine that says what a script tells it to, so that protocol tests need no model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from mtlqwen.engine import Output
from mtlqwen.errors import MtlqError, RequestError
from mtlqwen.sampling import SamplingParams

Script = Callable[[list[int], SamplingParams], Sequence[int]]


@dataclass
class FakeRequest:
    tokens: list[int]  # still to be said
    finish_reason: str
    cached_tokens: int
    on_output: Callable[[Output], None]
    start_s: float = field(default_factory=time.monotonic)


@dataclass
class FakeEngine:
    """Each step delivers up to `tokens_per_step` tokens to every request."""

    script: Script
    max_context: int = 2048
    tokens_per_step: int = 1
    step_s: float = 0.0
    delay_s: float = 0.0  # before a request's first token
    cached_tokens: int = 0
    alive: bool = True
    requests: list[FakeRequest] = field(default_factory=list)
    submitted: list[tuple[list[int], SamplingParams]] = field(default_factory=list)

    def __post_init__(self) -> None:
        closable = SimpleNamespace(close=lambda: None)
        self.runner = SimpleNamespace(
            max_context=self.max_context,
            close=lambda: None,
            device=closable,
            gguf=closable,
            drafter_gguf=None,
        )
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, ids, params, *, checkpoints=(), stop_ids=frozenset(), on_output):
        if not self.alive:
            raise MtlqError("the engine has stopped")
        room = self.max_context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, the context holds {self.max_context}",
                param="messages",
                code="context_length_exceeded",
            )
        tokens = list(self.script(list(ids), params))
        end = next((at for at, token in enumerate(tokens) if token in stop_ids), None)
        if end is not None and not params.ignore_eos:
            tokens = tokens[:end]
        limit = min(room, params.max_tokens or room)
        cut = len(tokens) > limit or (end is None and len(tokens) == limit)
        request = FakeRequest(
            tokens[:limit], "length" if cut else "stop", self.cached_tokens, on_output
        )
        with self._changed:
            self.submitted.append((list(ids), params))
            self.requests.append(request)
            self._changed.notify()
        return request

    def cancel(self, request: FakeRequest) -> None:
        with self._changed:
            if request in self.requests:
                self.requests.remove(request)
                request.on_output(self._output(request, [], "cancelled"))

    def die(self) -> None:
        """Ends as an engine does whose device failed."""
        with self._changed:
            self.alive = False
            for request in self.requests:
                error = MtlqError("the device is lost")
                request.on_output(self._output(request, [], "error", error))
            self.requests.clear()

    def close(self) -> None:
        with self._changed:
            self.alive = False
            for request in self.requests:
                request.on_output(self._output(request, [], "cancelled"))
            self.requests.clear()
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        with self._changed:
            while not self._closing:
                if not self.requests:
                    self._changed.wait()
                    continue
                for request in list(self.requests):
                    if time.monotonic() - request.start_s >= self.delay_s:
                        self._advance(request)
                self._changed.wait(self.step_s)

    def _advance(self, request: FakeRequest) -> None:
        count = self.tokens_per_step
        now, request.tokens = request.tokens[:count], request.tokens[count:]
        done = not request.tokens
        if done:
            self.requests.remove(request)
        request.on_output(self._output(request, now, request.finish_reason if done else None))

    def _output(self, request, tokens, finish_reason, error=None) -> Output:
        return Output(
            tokens=tokens,
            finish_reason=finish_reason,
            error=error,
            cached_tokens=request.cached_tokens,
        )
