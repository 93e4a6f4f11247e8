from pathlib import Path

import numpy as np
import numpy.typing as npt

from ._bindings import BundlePool

class Entry:
    """A point to restart from: the state after `num_tokens` tokens and the bundles of their K/V.

    Without `state` it is cold: what it stands for must first be loaded from `path`.
    """

    num_tokens: int
    key: bytes
    bundles: list[int]
    state: npt.NDArray[np.uint8] | None
    path: Path | None
    durable: bool
    @property
    def is_cold(self) -> bool: ...
    @property
    def tokens(self) -> npt.NDArray[np.int32]: ...

class PrefixCache:
    """Entries under a budget of `max_bytes` for their states, the least recently used evicted
    first.

    model_id: what the root of all keys is made from. chunk_tokens: tokens per link of the chain.
    """

    chunk_tokens: int
    max_bytes: int
    state_bytes: int
    num_bytes: int
    num_evictions: int
    def __init__(
        self,
        pool: BundlePool,
        model_id: bytes,
        *,
        state_bytes: int,
        max_bytes: int,
        chunk_tokens: int = 512,
    ) -> None: ...
    @property
    def is_enabled(self) -> bool:
        """Whether the budget holds at least one state."""
    @property
    def entries(self) -> list[Entry]:
        """Those with a state, least recently used first."""
    def __len__(self) -> int: ...
    def grid(self, num_tokens: int) -> set[int]:
        """Multiples of chunk_tokens to publish in a prompt of `num_tokens`.

        A long prompt skips some, so that it flushes no more than about a quarter of the cache;
        never the last.
        """
    def lookup(self, tokens: npt.NDArray[np.int32]) -> tuple[Entry | None, int]:
        """The longest entry that leaves at least one of `tokens` to compute, and how many leading
        tokens are those of anything known.
        """
    def find(self, tokens: npt.NDArray[np.int32]) -> Entry | None:
        """The entry for exactly these tokens."""
    def touch(self, entry: Entry) -> None:
        """Makes an entry the most recently used."""
    def make_room(self) -> npt.NDArray[np.uint8] | None:
        """Memory for one more state, others evicted for it; None if the budget holds none."""
    def publish(
        self, tokens: npt.NDArray[np.int32], bundles: list[int], state: npt.NDArray[np.uint8]
    ) -> Entry | None:
        """Adds an entry, or warms the cold one of these tokens; takes a reference to each bundle.

        ValueError if a warm one exists; None if two chunks of tokens have one hash.
        """
    def insert(self, tokens: npt.NDArray[np.int32]) -> Entry | None:
        """Adds a cold entry."""
    def evict(self, entry: Entry) -> npt.NDArray[np.uint8]:
        """Gives the bundles of a warm entry back and returns its memory. It stays, cold, if it has
        a file.
        """
    def remove(self, entry: Entry) -> None:
        """Forgets a cold entry."""
    def free_bundle(self) -> bool:
        """Evicts until a bundle is free; False if sequences bind all that is left."""
    def clear(self) -> None:
        """Evicts and forgets everything."""
