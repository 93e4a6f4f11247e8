from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .sampling import SamplingParams

class Sampler:
    """Chooses the tokens of one request, as `sampling.py` describes; holds its penalties and seed.

    A row of logits is f32 [num_tokens or more], contiguous; what follows num_tokens is padding,
    never chosen. `prompt_ids` count for the repetition penalty. Raises RequestError for a
    logit_bias outside the vocabulary. Not for several threads at once.
    """

    seed: int  # of params, or the one that was drawn
    position: int  # tokens accepted so far: the draw of a position is always the same
    num_tokens: int

    def __init__(
        self, params: SamplingParams, num_tokens: int, *, prompt_ids: Sequence[int] = ()
    ) -> None: ...
    def sample(self, logits: NDArray[np.float32]) -> int:
        """The token for the next position. Changes nothing: `accept` moves on.

        Raises MtlqError if a logit is nan or inf, or all are -inf.
        """

    def accept(self, token: int) -> None:
        """Counts `token` as generated."""

    def distribution(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """What `sample` draws from: token ids, increasing, and their probabilities, with sum 1."""

    def logprobs(
        self, logits: NDArray[np.float32], token: int, count: int
    ) -> tuple[float, list[tuple[int, float]]]:
        """Log-probability of `token`, and the `count` most likely tokens with theirs, best first.

        Of the model itself: before penalties, bias, temperature and filters. Needs params.logprobs.
        """
