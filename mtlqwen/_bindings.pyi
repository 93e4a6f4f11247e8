from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

class BundlePool:
    """Bundles with reference counts, in heap chunks that come and go with the need.

    max_bundles: the budget. chunk_bundles: bundles of a chunk; the last chunk may have fewer.
    new_heap(num_bundles) -> id and free_heap(id) make and release a chunk.
    """

    max_bundles: int
    chunk_bundles: int
    num_bundles: int
    num_held: int
    num_bound: int
    def __init__(
        self,
        max_bundles: int,
        chunk_bundles: int,
        new_heap: Callable[[int], int],
        free_heap: Callable[[int], None],
    ) -> None: ...
    @property
    def num_free(self) -> int:
        """Bundles without a reference, in chunks that exist."""
    @property
    def num_available(self) -> int:
        """Bundles that sequences could bind if prefix entries held none."""
    @property
    def num_chunks(self) -> int: ...
    def ref_cnt(self, bundle: int) -> int:
        """Bindings and prefix entries that hold it."""
    def is_bound(self, bundle: int) -> bool:
        """Whether a sequence binds it."""
    def place(self, bundle: int) -> tuple[int, int]:
        """Heap id and index within the heap."""
    def take(self, after: int = -1) -> int | None:
        """Binds a free bundle, the one behind `after` if possible; None if the budget is spent."""
    def bind(self, bundle: int) -> None:
        """A reference by a sequence."""
    def unbind(self, bundle: int) -> None: ...
    def retain(self, bundle: int) -> None:
        """A reference by a prefix entry."""
    def release(self, bundle: int) -> None: ...
    def trim(self) -> None:
        """Frees chunks without references. No slot may show their bundles any more."""

class SlotMap:
    """Which bundle each block of a slot shows, and the operations that bring the device there.

    buffers: ids of the sparse buffers in tile order. max_runs: mappings per buffer that the system
        allows.
    """

    num_runs: int
    max_runs: int
    def __init__(
        self,
        pool: BundlePool,
        buffers: Sequence[int],
        num_slots: int,
        blocks_per_slot: int,
        tile_pages: Sequence[int],
        max_runs: int,
    ) -> None: ...
    @property
    def is_empty(self) -> bool:
        """Whether no operation waits for a submission."""
    def has_room(self, num_bundles: int) -> bool:
        """Whether so many more bundles fit the limit on mappings, wherever they lie."""
    def runs_in(self, slot: int) -> int:
        """Mappings of a slot per buffer."""
    def map(self, slot: int, bundle: int) -> None:
        """Shows a bundle in the slot's next block."""
    def unmap(self, slot: int) -> None:
        """Takes all blocks of a slot away."""
    def take_ops(self) -> npt.NDArray[np.void] | None:
        """The queued operations (abi.MAP_OP) for one submission, valid until the next call; None if
        none.
        """
