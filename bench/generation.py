"""Answers of an engine to a list of prompts, and how fast their tokens came."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from mtlqwen.engine import Engine, Output
from mtlqwen.sampling import SamplingParams


@dataclass
class Generation:
    """What was generated after the first token of each prompt: reading prompts does not count."""

    answers: list[list[int]] = field(default_factory=list)
    num_tokens: int = 0
    num_rows: int = 0  # sequences that generated, summed over the passes
    pass_ns: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.pass_ns) / 1e9

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds

    def add(self, other: Generation) -> None:
        self.answers += other.answers
        self.num_tokens += other.num_tokens
        self.num_rows += other.num_rows
        self.pass_ns += other.pass_ns


def generate(
    engine: Engine,
    prompts: Sequence[list[int]],
    max_tokens: int,
    *,
    batch: int = 1,
    stop_ids: Collection[int] = (),
) -> Generation:
    """Greedy answers, `batch` prompts at once; the engine must not be started.

    Without stop_ids every answer has max_tokens.
    """
    total = Generation()
    for first in range(0, len(prompts), batch):
        total.add(_together(engine, prompts[first : first + batch], max_tokens, stop_ids))
    return total


class _Answer:
    """The tokens of a request as they come."""

    def __init__(
        self, engine: Engine, prompt: list[int], max_tokens: int, stop_ids: Collection[int]
    ):
        self.tokens: list[int] = []
        self.is_done = False
        self.error: Exception | None = None
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=not stop_ids)
        engine.submit(prompt, params, stop_ids=stop_ids, on_output=self._receive)

    @property
    def has_begun(self) -> bool:
        return self.is_done or bool(self.tokens)

    def _receive(self, output: Output) -> None:
        self.tokens += output.tokens
        self.is_done = output.finish_reason is not None
        self.error = output.error


def _together(
    engine: Engine, prompts: Sequence[list[int]], max_tokens: int, stop_ids: Collection[int]
) -> Generation:
    answers = [_Answer(engine, prompt, max_tokens, stop_ids) for prompt in prompts]
    while not all(answer.has_begun for answer in answers):
        engine.step()
    num_tokens, num_rows = engine.stats.generated_tokens, engine.stats.generating_rows
    pass_ns = []
    while not all(answer.is_done for answer in answers):
        begin_ns = perf_counter_ns()
        engine.step()
        pass_ns.append(perf_counter_ns() - begin_ns)
    for error in (answer.error for answer in answers if answer.error is not None):
        raise error
    return Generation(
        [answer.tokens for answer in answers],
        engine.stats.generated_tokens - num_tokens,
        engine.stats.generating_rows - num_rows,
        pass_ns,
    )
