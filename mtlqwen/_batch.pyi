from typing import Any

from ._sequence import Sequence

class Batch:
    """Packs steps into `arrays`, the runner's BatchArrays."""

    num_rows: int
    num_logit_rows: int
    def __init__(self, arrays: Any) -> None: ...
    def pack(self, live: list[Sequence]) -> int:
        """Writes the scheduled rows of all sequences and returns their number.

        Rows from the last known token of a sequence on get logits; `logit_row` says where.
        ValueError if the arrays are too short.
        """
