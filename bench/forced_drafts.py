"""Drafts that are right with a chosen probability, at the cost of real ones.

They are taken from recorded plain answers. A random drafter, if the runner has one, still runs its
block in every pass that drafts; what it guesses goes to rows that nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from generation import Generation, generate
from rounds import Rounds, alternate, rate, ratio, tokens_per_pass

from mtlqwen._sequence import Sequence as EngineSequence
from mtlqwen.device import Device
from mtlqwen.drafter_runner import NUM_COMMON_TOKENS
from mtlqwen.engine import Engine
from mtlqwen.gguf import open_gguf
from mtlqwen.load import BLOCK_TOKENS, close_engine, open_engine
from mtlqwen.runner import Runner
from mtlqwen.speculation import MAX_DRAFTS, BlockDrafts

MAX_BATCH = 8
MAX_ROWS = MAX_BATCH * (1 + MAX_DRAFTS)  # of a pass
PROMPT_TOKENS = 16
MIN_ANSWERS = 4  # of a run at a width of its own choice: a short one is a matter of luck
FIXED_ACCEPTANCE = 0.7  # with which passes of a fixed width are timed


class ForcedDrafts:
    """Proposes what the plain answer has next, each token right with probability `acceptance`.

    The engine gets the prompts in the order given here, as often as it likes.
    """

    max_drafts = MAX_DRAFTS
    likelihood = BlockDrafts.likelihood

    def __init__(
        self,
        prompts: Sequence[list[int]],
        answers: Sequence[list[int]],
        acceptance: float,
        block_rows: int,
    ):
        self.block_rows = block_rows
        pairs = zip(prompts, answers, strict=True)
        self._texts = [np.array(prompt + answer, np.int32) for prompt, answer in pairs]
        self._acceptance = acceptance
        self._rng = np.random.default_rng(0)

    def propose(self, sequence: EngineSequence, count: int) -> npt.NDArray[np.int32]:
        text = self._texts[sequence.number % len(self._texts)]
        drafts = text[sequence.num_tokens : sequence.num_tokens + count]
        is_wrong = self._rng.random(len(drafts)) >= self._acceptance
        return drafts ^ is_wrong  # the neighbour of an id is another id: tables have even lengths


class ForcedRunner(Runner):
    """A runner whose drafter works as ever, though the drafts of a batch stay what they were."""

    def __init__(self, device: Device, model: Path, drafter: Path | None, max_context: int):
        super().__init__(
            device,
            model,
            open_gguf(drafter) if drafter else None,
            max_slots=MAX_BATCH,
            max_context=max_context,
            pass_tokens=2 * MAX_ROWS,  # the second half for what the drafter guesses
            max_draft_rows=1 + MAX_DRAFTS,
        )

    def run(self, map_ops: npt.NDArray[np.void] | None = None) -> None:
        if self.drafting is not None:
            drafts = self.drafting.drafts
            drafts.target_rows[: drafts.header[2]] += MAX_ROWS
        super().run(map_ops)

    def close(self) -> None:
        super().close()
        self.device.close()
        self.gguf.close()
        if self.drafter_gguf is not None:
            self.drafter_gguf.close()


class ForcedBench:
    """A plain engine, and runners to speculate with."""

    def __init__(
        self,
        stack: ExitStack,
        model: Path,
        drafter: Path | None,
        threads: int,
        num_tokens: int,
        num_rounds: int,
    ):
        max_context = -(-(PROMPT_TOKENS + num_tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
        self._num_tokens = num_tokens
        self._num_rounds = num_rounds
        self.plain = open_engine(model, threads=threads, ctx=max_context, prefix_memory=0)
        stack.callback(close_engine, self.plain)
        self.num_threads = self.plain.runner.device.info.num_threads
        self.runners: dict[str, ForcedRunner] = {}
        files = {"DFlash": drafter, "free": None} if drafter else {"free": None}
        for name, file in files.items():
            device = Device.open("cpu", num_threads=threads)
            self.runners[name] = ForcedRunner(device, model, file, max_context)
            stack.callback(self.runners[name].close)
        rng = np.random.default_rng(0)
        shape = (MAX_BATCH, PROMPT_TOKENS)
        num_ids = min(NUM_COMMON_TOKENS, self.plain.runner.config.num_tokens)
        self._prompts = rng.integers(0, num_ids, shape).tolist()
        self._answers: list[list[int]] = []  # to each prompt

    @property
    def names(self) -> list[str]:
        return list(self.runners)

    def auto_row(self, batch: int, percent: int) -> list[str]:
        """As the engine chooses the width."""
        num_answers = max(batch, MIN_ANSWERS)
        with ExitStack() as stack:
            runs = {"plain": partial(self.generate, self.plain, batch, num_answers)}
            for name in self.runners:
                engine = self.engine(name, num_answers, percent / 100)
                stack.enter_context(closing(engine))
                runs[name] = partial(self.generate, engine, batch, num_answers)
            rounds = alternate(runs, self._num_rounds)
        cells = [str(batch), str(percent), rate(rounds, "plain")]
        for name in self.runners:
            cells += [rate(rounds, name), ratio(rounds, name), tokens_per_pass(rounds, name)]
        return cells

    def width_rows(
        self, batch: int, widths: Sequence[int], percents: Sequence[int]
    ) -> Iterator[list[str]]:
        runs = {"plain": partial(self.generate, self.plain, batch, batch)}
        for width in widths:
            for name in self.runners:
                runs[f"{name} {width}"] = partial(self._generate_once, name, batch, width)
        rounds = alternate(runs, self._num_rounds)
        plain_ns = median_pass_ns(rounds, "plain")
        for width in widths:
            cells = [str(batch), str(width)]
            for name in self.runners:
                cost = median_pass_ns(rounds, f"{name} {width}") / plain_ns
                gains = (expected_tokens(width, percent / 100) / cost for percent in percents)
                cells += [f"{cost:.2f}", *(f"{gain:.2f}" for gain in gains)]
            yield cells

    def generate(self, engine: Engine, batch: int, num_answers: int) -> Generation:
        """To the first prompts, `batch` at once."""
        return generate(engine, self._prompts[:num_answers], self._num_tokens, batch=batch)

    def _generate_once(self, name: str, batch: int, width: int) -> Generation:
        with closing(self.engine(name, batch, FIXED_ACCEPTANCE, width)) as engine:
            return self.generate(engine, batch, batch)

    def engine(
        self, name: str, num_answers: int, acceptance: float, width: int | None = None
    ) -> Engine:
        """One at a time over each runner."""
        if not self._answers:
            self._answers = self.generate(self.plain, MAX_BATCH, MAX_BATCH).answers
        runner = self.runners[name]
        block_rows = runner.drafter.block_size if runner.drafter else 0
        prompts, answers = self._prompts[:num_answers], self._answers[:num_answers]
        drafts = ForcedDrafts(prompts, answers, acceptance, block_rows)
        return Engine(runner, prefix_memory_bytes=0, drafts=drafts, draft_width=width)


def median_pass_ns(rounds: Rounds, name: str) -> float:
    return median(ns for results in rounds for ns in results[name].pass_ns)


def expected_tokens(width: int, acceptance: float) -> float:
    """Of a pass: each draft counts with probability `acceptance` if those before it do."""
    return sum(acceptance**position for position in range(width + 1))
