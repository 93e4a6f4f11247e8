"""Speed of prompt processing and generation: random token ids through the engine's own step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from .sampling import SamplingParams

if TYPE_CHECKING:
    from .engine import Engine, Output


@dataclass(frozen=True)
class Case:
    """`batch` requests at once that read `num_prompt` tokens, or generate `num_generated`."""

    num_prompt: int
    num_generated: int
    batch: int

    @property
    def name(self) -> str:
        return f"pp{self.num_prompt}" if self.num_prompt else f"tg{self.num_generated}"

    @property
    def num_tokens(self) -> int:
        return (self.num_prompt or self.num_generated) * self.batch


@dataclass(frozen=True)
class Row:
    """A case and its speed in each repetition, in tokens of the whole batch per second."""

    case: Case
    rates: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def spread(self) -> float:
        """Standard deviation of the repetitions; 0 for one."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


def cases(prompts: Sequence[int], generated: Sequence[int], batches: Sequence[int]) -> list[Case]:
    """Every length but 0 at every batch size, prompt processing first."""
    return [
        *(Case(length, 0, batch) for batch in batches for length in prompts if length),
        *(Case(0, length, batch) for batch in batches for length in generated if length),
    ]


def measure(engine: Engine, wanted: Sequence[Case], repetitions: int) -> Iterator[Row]:
    """Runs each case once to warm up, then `repetitions` times; the engine must not be started."""
    rng = np.random.default_rng(0)
    for case in wanted:
        run(engine, case, rng)
        yield Row(case, [case.num_tokens / run(engine, case, rng) for _ in range(repetitions)])


def run(engine: Engine, case: Case, rng: np.random.Generator) -> float:
    """Seconds that one run of `case` takes. A prompt's run ends with its first token."""
    num_running = case.batch
    failure: Exception | None = None

    def on_output(output: Output) -> None:
        nonlocal num_running, failure
        if output.finish_reason is not None:
            num_running -= 1
            failure = failure or output.error

    # Fresh ids each time: nothing may come from the prefix cache.
    prompts = rng.integers(0, engine.runner.config.num_tokens, (case.batch, case.num_prompt or 1))
    params = SamplingParams(max_tokens=case.num_generated or 1, ignore_eos=True)
    start_s = perf_counter()
    for prompt in prompts.tolist():
        engine.submit(prompt, params, on_output=on_output)
    while num_running and failure is None:
        engine.step()
    if failure is not None:
        raise failure
    return perf_counter() - start_s
