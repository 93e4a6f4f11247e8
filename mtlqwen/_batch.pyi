from typing import Any

from ._features import FeatureLog
from ._sequence import Sequence

class Batch:
    """Packs steps into `arrays`, the runner's BatchArrays, and what a drafter computes into the
    arrays of `drafting`, its DrafterRunner, with the drafts' placeholders as ids.
    """

    num_rows: int
    num_logit_rows: int
    num_injected: int  # rows of features that become context in this pass
    features: FeatureLog | None
    def __init__(self, arrays: Any, drafting: Any = None) -> None: ...
    def pack(self, live: list[Sequence], inject: bool = False) -> int:
        """Writes the scheduled rows of all sequences and returns their number.

        Rows from the last known token of a sequence on get logits; `logit_row` says where.
        inject: the drafter's context is completed first, as it is where a sequence has drafts.
        ValueError if the arrays are too short.
        """
    def keep_features(self) -> None:
        """After the pass, when its sequences have advanced: notes whose features it left."""
    def drafts(self, sequence: Sequence) -> list[int]:
        """The drafts that this pass has verified, in order."""
