from typing import Any

import numpy as np
import numpy.typing as npt

NO_SLOT: int
NO_ROW: int
NO_CHECKPOINT: int
UNBOUND: int

class Sequence:
    """A request inside the engine: its tokens, how many of them are computed, and where that lives.

    number: order of arrival. request: whatever the owner wants to find again.
    """

    request: Any
    number: int
    def __init__(self, ids: npt.NDArray[np.int32], number: int, request: Any = None) -> None: ...
    @property
    def num_tokens(self) -> int:
        """Prompt and answer."""
    @property
    def kv_valid(self) -> int:
        """Leading tokens whose K/V and GDN state are computed."""
    @property
    def pending(self) -> int:
        """Tokens to compute; 1 while generating."""
    @property
    def slot(self) -> int: ...
    @property
    def bank(self) -> int:
        """The GDN bank that holds the state after kv_valid - replay tokens."""
    @property
    def state(self) -> int:
        """The tape that the current step's rows are recorded on, or UNBOUND without drafts."""
    @property
    def replay(self) -> int:
        """Rows on the bank's tape to replay before the bank holds the state at kv_valid."""
    @property
    def n_draft(self) -> int:
        """Drafts that the next step verifies, behind the last token."""
    @property
    def count(self) -> int:
        """Rows in the current step."""
    @property
    def logit_row(self) -> int:
        """The first row of logits that belongs to this sequence in the current step, or NO_ROW."""
    @property
    def num_blocks(self) -> int: ...
    @property
    def last_bundle(self) -> int:
        """Bundle of the last block; -1 without blocks."""
    @property
    def bindings(self) -> list[int]:
        """Bundle of each block."""
    @property
    def active(self) -> bool:
        """Whether it has a slot."""
    @property
    def busy(self) -> bool:
        """Whether it has rows in the current step."""
    @property
    def stage(self) -> str:
        """ "waiting", "p.p" (prompt processing) or "t.g" (token generation)."""
    @property
    def next_checkpoint(self) -> int:
        """The position that no prompt chunk runs across; NO_CHECKPOINT if none is left."""
    @property
    def at_checkpoint(self) -> bool: ...
    def tokens(self, count: int | None = None) -> npt.NDArray[np.int32]:
        """A copy of the first `count` tokens, by default all."""
    def blocks_missing(self, block_tokens: int) -> int:
        """Blocks to bind before the scheduled rows can run; not positive if none."""
    def shared_tokens(self, other: Sequence) -> int:
        """Length of the longest common prefix."""
    def append(self, token: int) -> None: ...
    def bind(self, bundle: int) -> None:
        """Records the bundle of the next block."""
    def start(self, slot: int) -> None: ...
    def restore(self, kv_valid: int) -> None:
        """Takes the first kv_valid tokens as computed. ValueError if none would be left."""
    def stop(self) -> None:
        """Leaves the slot; tokens stay, nothing of them is computed any more."""
    def lookup(self, count: int) -> npt.NDArray[np.int32]:
        """At most `count` tokens that followed the latest of the longest earlier matches of the
        last tokens; empty if fewer than 3 match.
        """
    def draft(self, tokens: npt.NDArray[np.int32], block_rows: int = 0) -> None:
        """Has the next step verify these tokens. ValueError unless exactly one token is pending.

        block_rows: if a drafter on the device makes them, the rows of its block: the last known
        token and what it was trained to see behind it, however few of those are drafts.
        """
    def drop_drafts(self) -> None: ...
    def advance(self, accepted: int = 0) -> None:
        """Counts the step's rows but those of rejected drafts as computed and flips the bank."""
    def flush(self) -> None:
        """Records that a pass without rows has replayed the tape."""
    def set_checkpoints(self, positions: set[int] | tuple[int, ...]) -> None:
        """Positions, of those not yet computed, where prompt chunks must end."""
    def add_checkpoint(self, position: int) -> None: ...
    def pass_checkpoint(self) -> None: ...
