from collections.abc import Sequence

class CostCurve:
    """Time of a pass over the number of its rows, for one number of generating sequences."""

    num_sequences: int
    max_rows: int  # of a pass
    def __init__(self, num_sequences: int, max_rows: int) -> None: ...
    @property
    def has_plain(self) -> bool:
        """Whether a pass without drafts was measured."""

    @property
    def wants_plain(self) -> bool:
        """Whether it was measured too seldom, or too long ago, to compare with: then the next pass
        should have no drafts.
        """

    def measure(self, num_rows: int, ns: float) -> float:
        """A pass took so long. What of it counts: a pass that was held up does not in full.

        ValueError unless num_sequences <= num_rows <= max_rows.
        """

    def ns(self, num_rows: int) -> float:
        """Between measured numbers of rows interpolated, beyond them as passes with drafts rise so
        far; 0 before anything was measured.
        """

    def paying(
        self, rates: Sequence[tuple[float, float]], limits: Sequence[int], room: int
    ) -> list[int]:
        """How many drafts of each drafting sequence give the most expected tokens per time.

        rates: that the first draft of each is right, and that a further one is if those before it
        are; limits: most drafts of each; room: rows of the pass beside one per sequence.
        """
