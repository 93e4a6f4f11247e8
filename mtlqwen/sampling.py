"""How the next token is chosen: the parameters of a request.

Order of operations on a row of logits, as in transformers and vLLM:

1. repetition penalty (tokens of prompt and answer): divides positive logits, multiplies others;
2. frequency and presence penalty (tokens of the answer): minus frequency * count + presence;
3. logit bias: added;
4. temperature: softmax(logits / temperature); 0 takes the largest logit, the first of equals;
5. top-k: the k most likely tokens;
6. top-p: of these the fewest, most likely first and at least one, that hold top_p of the
   probability that is left;
7. min-p: of these the ones at least min_p times as likely as the most likely token.

What remains is drawn from in proportion, in the order of token ids. The random number behind token
n of an answer depends on the seed and n alone, whatever else the engine runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .arguments import an_integer, is_integer, is_number, misfit
from .errors import RequestError

MAX_LOGPROBS = 20
MAX_TOP_K = 2**31 - 1
MAX_SHIFT = 1e6  # of temperature, penalties and biases: far from the limits of a float
MAX_BIASES = 1 << 16
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 256  # each token's text is held against all of them
DECIMAL_ID = re.compile("[0-9]{1,10}")


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request; the module describes what they do and in which order.

    Raises RequestError, with the parameter's name as `param`, for a value out of its range.
    """

    max_tokens: int | None = None  # None: up to the end of the context
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    seed: int | None = None  # None: different each time
    stop: tuple[str, ...] = ()  # a single string will do
    stop_ids: tuple[int, ...] = ()  # in addition to the model's own
    ignore_eos: bool = False
    logprobs: int | None = None  # most likely tokens to report beside each chosen one

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            self._check_integer("max_tokens", 1)
        self._check_number("temperature", 0.0, MAX_SHIFT)
        self._check_integer("top_k", 0, MAX_TOP_K)
        self._check_number("top_p", 0.0, 1.0)
        self._check_number("min_p", 0.0, 1.0)
        self._check_number("presence_penalty", -MAX_SHIFT, MAX_SHIFT)
        self._check_number("frequency_penalty", -MAX_SHIFT, MAX_SHIFT)
        self._check_number("repetition_penalty", 1.0 / MAX_SHIFT, MAX_SHIFT)
        if self.seed is not None:
            self._check_integer("seed", -(1 << 63), (1 << 64) - 1)
        if self.logprobs is not None:
            self._check_integer("logprobs", 0, MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise _refusal("ignore_eos", self.ignore_eos, "True or False")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "stop_ids", checked_ids("stop_ids", self.stop_ids))

    @property
    def is_greedy(self) -> bool:
        """The choice is the largest raw logit: nothing adjusts the row and nothing is drawn."""
        return self.temperature == 0.0 and not self.adjusts_logits

    @property
    def adjusts_logits(self) -> bool:
        """A penalty or bias changes the logits before anything else."""
        return bool(self.logit_bias) or self.has_penalty

    @property
    def has_penalty(self) -> bool:
        """The logits depend on the tokens so far."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def _check_integer(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if not is_integer(value, low, high):
            raise _refusal(name, value, an_integer(low, high))

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not is_number(value, low, high):
            raise _refusal(name, value, f"a number from {low:g} to {high:g}")


def checked_ids(name: str, ids: Iterable[int]) -> tuple[int, ...]:
    """The token ids of an argument; RequestError if it is something else."""
    checked = _as_tuple(ids)
    if checked is None or not all(is_integer(token, 0) for token in checked):
        raise _refusal(name, ids, "a list of token ids")
    return checked


def _refusal(name: str, value: object, wanted: str) -> RequestError:
    return RequestError(misfit(name, value, wanted), param=name)


def _checked_bias(bias: Mapping[Any, Any]) -> dict[int, float]:
    """Keys may be ids or, as in JSON, ids in decimal digits."""
    if not isinstance(bias, Mapping) or len(bias) > MAX_BIASES:
        wanted = f"a mapping of up to {MAX_BIASES} token ids to numbers"
        raise _refusal("logit_bias", bias, wanted)
    checked = {}
    for key, value in bias.items():
        token = int(key) if isinstance(key, str) and DECIMAL_ID.fullmatch(key) else key
        if not is_integer(token, 0) or not is_number(value, -MAX_SHIFT, MAX_SHIFT):
            raise _refusal(
                "logit_bias",
                {key: value},
                f"a mapping of token ids to numbers from {-MAX_SHIFT:g} to {MAX_SHIFT:g}",
            )
        checked[token] = float(value)
    return checked


def _checked_stop(stop: str | Iterable[str]) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else _as_tuple(stop)
    if (
        strings is None
        or len(strings) > MAX_STOPS
        or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARACTERS for s in strings)
    ):
        wanted = f"a string or up to {MAX_STOPS}, of 1 to {MAX_STOP_CHARACTERS} characters each"
        raise _refusal("stop", stop, wanted)
    return strings


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return tuple(value) if is_list else None
