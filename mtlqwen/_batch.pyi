from typing import Any

from ._sequence import Sequence

class Batch:
    """Packs steps into `arrays`, the runner's BatchArrays, and what a drafter computes into
    `drafts`, its DraftArrays, with the drafts' placeholders as ids.
    """

    num_rows: int
    num_logit_rows: int
    def __init__(self, arrays: Any, drafts: Any = None) -> None: ...
    def pack(self, live: list[Sequence]) -> int:
        """Writes the scheduled rows of all sequences and returns their number.

        Rows from the last known token of a sequence on get logits; `logit_row` says where.
        ValueError if the arrays are too short.
        """
    def drafts(self, sequence: Sequence) -> list[int]:
        """The drafts that this pass has verified, in order."""
