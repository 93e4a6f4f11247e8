"""One request on its way back from the engine: tokens in, text out, for threads and asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakMethod, ref

from .text import Delta, TextStream

if TYPE_CHECKING:
    from .chat import Prompt
    from .request import Output, TokenLogprobs
    from .sampling import SamplingParams
    from .tokenizer import Tokenizer

Receiver = Callable[[], Callable[["Output", float], None] | None]
"""A weak reference to what takes an output and the time it came at."""

Submit = Callable[[Callable[["Output"], None]], Callable[[], None]]
"""Hands a request to the engine with its `on_output`; returns what cancels it."""


@dataclass(frozen=True)
class Completion:
    """The whole answer to one prompt."""

    text: str
    reasoning: str  # what the model thought before it answered
    token_ids: list[int]  # generated, without the token that ended the answer
    finish_reason: str  # "stop" | "length" | "cancelled", or "unfinished" so far
    stop: str | None  # the stop string that ended it
    prompt_tokens: int
    cached_tokens: int  # of the prompt, restored from the prefix cache
    time_to_first_token_s: float
    decode_s: float  # from the first token to the last
    logprobs: list[TokenLogprobs] | None  # one per token, if the params ask for them

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were computed, over the time to the first token."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.time_to_first_token_s)

    @property
    def generate_tokens_per_second(self) -> float:
        """Tokens after the first over the time they took; 0 with fewer than two."""
        return _rate(self.generated_tokens - 1, self.decode_s)


class Generation:
    """Turns the engine's outputs for one request into text, reasoning, and figures."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Prompt,
        params: SamplingParams,
        *,
        split_reasoning: bool = True,
    ):
        self.finish_reason: str | None = None
        self.token_ids: list[int] = []
        self.cached_tokens = 0
        self.prompt_tokens = len(prompt.ids)
        self._logprobs: list[TokenLogprobs] = []
        self._wants_logprobs = params.logprobs is not None
        self._text = TextStream(
            tokenizer,
            stop=params.stop,
            starts_in_think=prompt.starts_in_think,
            split_reasoning=split_reasoning,
        )
        self._parts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._start_s = self._first_s = self._last_s = perf_counter()

    def feed(self, output: Output, at_s: float) -> list[Delta]:
        """What `output`, which arrived at `at_s`, makes readable; raises the engine's error.

        A stop string ends the generation at the token that completes it, whatever came along.
        """
        if self.finish_reason is not None:
            return []
        if output.error is not None:
            self.finish_reason = "error"
            raise output.error
        self.cached_tokens = output.cached_tokens
        if output.tokens:
            self._last_s = at_s
            if not self.token_ids:
                self._first_s = at_s
        deltas: list[Delta] = []
        for at, token in enumerate(output.tokens):
            self.token_ids.append(token)
            if output.logprobs is not None:
                self._logprobs.append(output.logprobs[at])
            deltas += self._text.push([token])
            if self._text.stopped is not None:
                break
        if self._text.stopped is None and output.finish_reason is not None:
            deltas += self._text.finish()
            self.finish_reason = output.finish_reason
        if self._text.stopped is not None:
            self.finish_reason = "stop"
        for delta in deltas:
            self._parts[delta.kind].append(delta.text)
        return deltas

    def completion(self) -> Completion:
        """What was generated so far, with the figures."""
        return Completion(
            text="".join(self._parts["content"]),
            reasoning="".join(self._parts["reasoning"]),
            token_ids=self.token_ids.copy(),
            finish_reason=self.finish_reason or "unfinished",
            stop=self._text.stopped,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            time_to_first_token_s=self._first_s - self._start_s,
            decode_s=self._last_s - self._first_s,
            logprobs=self._logprobs.copy() if self._wants_logprobs else None,
        )


class Stream(Iterator[Delta]):
    """The answer as it comes: iterate over its `Delta`s (`kind`: "content" or "reasoning", `text`).

    `close()`, leaving a `with` block, or dropping the object cancels what is still running.
    """

    def __init__(self, generation: Generation, submit: Submit):
        self._generation = generation
        self._outputs: SimpleQueue[tuple[Output, float]] = SimpleQueue()
        self._ready: deque[Delta] = deque()
        self._cancel = submit(_putter(self._outputs))

    @property
    def prompt_tokens(self) -> int:
        return self._generation.prompt_tokens

    def __next__(self) -> Delta:
        while not self._ready:
            if self._generation.finish_reason is not None:
                raise StopIteration
            output, at_s = self._outputs.get()
            self._ready.extend(self._generation.feed(output, at_s))
            if self._generation.finish_reason is not None and output.finish_reason is None:
                self._cancel()  # a stop string, of which the engine knows nothing
        return self._ready.popleft()

    def completion(self) -> Completion:
        """Reads to the end; the whole answer with its figures."""
        for _ in self:
            pass
        return self._generation.completion()

    def partial(self) -> Completion:
        """What has been read so far, for an answer that is being given up."""
        return self._generation.completion()

    def close(self) -> None:
        """Cancels the request if it still runs. May be called twice."""
        if self._generation.finish_reason is None:
            self._generation.finish_reason = "cancelled"
            self._cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_cancel"):  # not after a refused submit
            self.close()


class Courier:
    """Carries outputs from the engine's thread to an event loop: one wake-up per engine step."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = ref(loop)  # the LLM keeps a courier for as long as there is its loop
        self._waiting: deque[tuple[Receiver, Output, float]] = deque()
        self._woken = False

    def post(self, receiver: Receiver, output: Output) -> None:
        """Has the loop call the receiver with `output` and the time; for the engine's thread."""
        self._waiting.append((receiver, output, perf_counter()))
        if not self._woken:
            self._woken = True
            loop = self._loop()
            with suppress(RuntimeError):  # the loop is closed
                if loop is not None:
                    loop.call_soon_threadsafe(self._deliver)
                    return
            self._waiting.clear()  # nobody is left to read

    def _deliver(self) -> None:
        # Cleared before reading: a post in between wakes the loop once more, for nothing at worst.
        self._woken = False
        while self._waiting:
            receiver, output, at_s = self._waiting.popleft()
            receive = receiver()
            if receive is not None:
                receive(output, at_s)


class AsyncStream(AsyncIterator[Delta]):
    """`Stream` for asyncio; create it, read it and close it on one event loop."""

    def __init__(self, generation: Generation, submit: Submit, courier: Courier):
        self._generation = generation
        self._ready: list[Delta] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()
        receiver = WeakMethod(self._receive)  # the engine must not keep a dropped stream alive
        self._cancel = submit(lambda output: courier.post(receiver, output))

    def _receive(self, output: Output, at_s: float) -> None:
        try:
            self._ready += self._generation.feed(output, at_s)
        except Exception as error:
            self._error = error
        if self._generation.finish_reason is not None and output.finish_reason is None:
            self._cancel()  # a stop string, of which the engine knows nothing
        self._news.set()

    async def deltas(self) -> list[Delta]:
        """Everything readable since the last call, waiting for something; [] at the end."""
        while not self._ready and self._error is None and self._generation.finish_reason is None:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, []
        return ready

    async def __anext__(self) -> Delta:
        ready = await self.deltas()
        if not ready:
            raise StopAsyncIteration
        self._ready = ready[1:] + self._ready
        return ready[0]

    async def completion(self) -> Completion:
        """Reads to the end; the whole answer with its figures."""
        try:
            while await self.deltas():
                pass
        finally:
            self.close()
        return self._generation.completion()

    def close(self) -> None:
        """Cancels the request if it still runs. May be called twice."""
        if self._generation.finish_reason is None:
            self._generation.finish_reason = "cancelled"
            self._cancel()
            self._news.set()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_cancel") and self._generation.finish_reason is None:
            self._cancel()


def _putter(outputs: SimpleQueue[tuple[Output, float]]) -> Callable[[Output], None]:
    # Not a method of the stream: the engine must not keep a dropped stream alive.
    return lambda output: outputs.put((output, perf_counter()))


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if count > 0 and duration_s > 0 else 0.0
