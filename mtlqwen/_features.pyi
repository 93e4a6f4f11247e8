from typing import Any

class FeatureLog:
    """The rows of features that the drafter's context lacks, in `arrays`, its ContextArrays: all of
    them positions of live sequences. A pass has them injected before it writes more than fit.
    """

    num_rows: int
    def __init__(self, arrays: Any) -> None: ...
    def drop(self, slot: int) -> None:
        """Forgets what a slot's sequence, which leaves it, has not had injected."""
