"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ._sample import Sampler
from ._sequence import Sequence
from .arguments import is_integer, misfit
from .errors import RequestError
from .sampling import SamplingParams
from .speculation import Acceptance

TokenLogprobs = tuple[float, list[tuple[int, float]]]
"""Log-probability of a token, and the most likely tokens with theirs."""


@dataclass(slots=True)
class Output:
    """What a step brought for a request; the last one has a finish_reason."""

    tokens: list[int]
    finish_reason: str | None = None  # "stop" | "length" | "cancelled" | "error"
    error: Exception | None = None
    cached_tokens: int = 0  # of the prompt, restored from the prefix cache
    logprobs: list[TokenLogprobs] | None = None  # one per token, if params.logprobs asks for them


@dataclass(slots=True)
class Answer:
    """The tokens that one pass adds to a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_accepted: int = 0  # drafts that count as computed
    finish_reason: str | None = None
    error: Exception | None = None  # of this request's sampler


class Request:
    """A submitted request; `Engine.cancel` takes it. The engine's thread owns all its fields."""

    def __init__(
        self,
        ids: npt.NDArray[np.int32],
        number: int,
        params: SamplingParams,
        *,
        num_left: int,
        num_tokens: int,
        checkpoints: Collection[int],
        stop_ids: Collection[int],
        on_output: Callable[[Output], None],
    ):
        self.sequence = Sequence(ids, number, self)
        self.params = params
        self.on_output = on_output
        self.num_left = num_left  # tokens that may still be generated
        self.checkpoints = set(checkpoints)
        self.stop_ids = frozenset(params.stop_ids).union(() if params.ignore_eos else stop_ids)
        # Plain greedy requests take the device's choice.
        self.sampler: Sampler | None = None
        if not params.is_greedy or params.logprobs is not None:
            self.sampler = Sampler(params, num_tokens, prompt_ids=ids.tolist())
        self.cached_tokens: int | None = None  # known from the first admission on
        self.num_published = 0  # leading tokens that a prefix entry stands for
        self.waits_for: tuple[Sequence, int] | None = None  # a sequence, the position it publishes
        self.finish_reason: str | None = None
        self.acceptance = Acceptance()

    def choose(
        self, logits: npt.NDArray[np.float32], greedy: int
    ) -> tuple[int, TokenLogprobs | None]:
        """The token that follows, given a row of logits and its largest index; its log-
        probabilities.
        """
        if self.sampler is None:
            return greedy, None
        token = self.sampler.sample(logits)
        self.sampler.accept(token)
        if self.params.logprobs is None:
            return token, None
        return token, self.sampler.logprobs(logits, token, self.params.logprobs)

    def answer(self, logits: npt.NDArray[np.float32], greedy: Ids[int], drafts: Ids[int]) -> Answer:
        """What follows, given the rows of the last known token and of each draft behind it.

        logits: [1 + len(drafts), ...]; greedy: their largest indices. Row by row the token is
        chosen as ever; the next row counts only if its draft is that token.
        """
        answer = Answer()
        for row, best in enumerate(greedy):
            try:
                token, logprobs = self.choose(logits[row], best)
            except Exception as error:
                answer.finish_reason, answer.error = "error", error
                break
            if token in self.stop_ids:
                answer.finish_reason = "stop"
                break
            answer.tokens.append(token)
            if logprobs is not None:
                answer.logprobs.append(logprobs)
            self.num_left -= 1
            if self.num_left == 0:
                answer.finish_reason = "length"
                break
            if row == len(drafts) or token != drafts[row]:
                break
            answer.num_accepted += 1
        return answer


def checked_params(params: SamplingParams) -> SamplingParams:
    """The params of a request; RequestError if it is something else."""
    if not isinstance(params, SamplingParams):
        raise RequestError(misfit("params", params, "a SamplingParams"), param="params")
    return params


def checked_prompt(
    ids: Ids[int] | npt.NDArray[np.int32],
    checkpoints: Collection[int],
    num_tokens: int,
    *,
    wanted: str = "a list of token ids",
) -> npt.NDArray[np.int32]:
    """The ids as an array; RequestError if they or the checkpoints are out of range, or if the ids
    are not what was `wanted`.
    """
    tokens = _as_array(ids)
    if tokens is not None and tokens.shape == (0,):
        raise RequestError("the prompt has no tokens", param="prompt")
    if tokens is None or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise RequestError(misfit("the prompt", ids, wanted), param="prompt")
    if tokens.min() < 0 or tokens.max() >= num_tokens:
        wrong = next(int(token) for token in tokens if not 0 <= token < num_tokens)
        raise RequestError(f"token {wrong} is not within 0 to {num_tokens - 1}", param="prompt")
    if not isinstance(checkpoints, Collection) or not all(
        is_integer(position, 1, len(tokens)) for position in checkpoints
    ):
        wanted = f"integers from 1 to the {len(tokens)} tokens of the prompt"
        raise RequestError(misfit("checkpoints", checkpoints, wanted), param="checkpoints")
    return np.ascontiguousarray(tokens, np.int32)


def _as_array(ids: Any) -> npt.NDArray[Any] | None:
    """None for what NumPy would take for bytes, or not at all."""
    if isinstance(ids, bytes | bytearray | memoryview):
        return None
    try:
        return np.asarray(ids)
    except ValueError:  # lists of different lengths
        return None
