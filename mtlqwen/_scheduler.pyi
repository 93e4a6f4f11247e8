from ._sequence import Sequence

class Scheduler:
    """Divides each pass of `pass_tokens` rows among the live sequences.

    A generating sequence gets its token and its drafts. The rest is divided equally over the
    prompts; what a short one or one before a checkpoint cannot use is handed on. Every sequence
    gets at least one row.

    prompt_share: share of that rest which prompts may use while something generates, from 1
        (shortest time to the first token) to 0 (one row per prompt: generation is not slowed down).
    """

    pass_tokens: int
    max_slots: int
    prompt_share: float
    def __init__(self, pass_tokens: int, max_slots: int, prompt_share: float = 1.0) -> None: ...
    def schedule(self, live: list[Sequence]) -> int:
        """Sets `count` of each sequence (in order of arrival); returns the rows of the pass."""
