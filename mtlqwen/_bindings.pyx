"""Physical K/V memory: which bundle is free, who holds it, and where slots see it.

A bundle is the K/V memory of one block of tokens in every layer. Bundles live in heap chunks; tile
t of bundle b of a chunk of n bundles, with p[t] pages, is at heap page n * sum(p[:t]) + b * p[t], so
that consecutive bundles in consecutive blocks of a slot are one mapping per tile.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

import numpy as np

from mtlqwen import abi

cdef int32_t NONE = -1

cdef struct MapOp:  # mtlq_map_op
    uint32_t kind
    uint32_t buffer
    uint32_t heap
    uint32_t reserved
    uint64_t page
    uint64_t heap_page
    uint64_t num_pages

cdef struct Run:  # consecutive blocks of a slot, in every tile
    uint32_t kind
    int32_t slot
    int32_t block
    int32_t bundle  # of the first block, for a map
    int32_t num_blocks


cdef class BundlePool:
    def __cinit__(self, int32_t max_bundles, int32_t chunk_bundles, new_heap, free_heap):
        if max_bundles < 1 or chunk_bundles < 1:
            raise ValueError(f"a pool of {max_bundles} bundles in chunks of {chunk_bundles}")
        cdef int32_t num_chunks = (max_bundles + chunk_bundles - 1) // chunk_bundles
        self.max_bundles = max_bundles
        self.chunk_bundles = chunk_bundles
        self.new_heap = new_heap
        self.free_heap = free_heap
        self.heaps = [None] * num_chunks
        self.sizes = np.zeros(num_chunks, np.int32)
        self.held = np.zeros(num_chunks, np.int32)
        self.ref_cnts = np.zeros(num_chunks * chunk_bundles, np.int32)
        self.bind_cnts = np.zeros(num_chunks * chunk_bundles, np.int32)

    # ---- questions -------------------------------------------------------------------------

    @property
    def num_free(self):
        """Bundles without a reference, in chunks that exist."""
        return self.num_bundles - self.num_held

    @property
    def num_available(self):
        """Bundles that sequences could still bind if no prefix entry held any."""
        return self.max_bundles - self.num_bound

    @property
    def num_chunks(self):
        return sum(heap is not None for heap in self.heaps)

    def ref_cnt(self, int32_t bundle):
        self._check(bundle)
        return self.ref_cnts[bundle]

    def is_bound(self, int32_t bundle):
        self._check(bundle)
        return self.bind_cnts[bundle] > 0

    def place(self, int32_t bundle):
        self._check(bundle)
        return self.heaps[bundle // self.chunk_bundles], bundle % self.chunk_bundles

    cdef int _check(self, int32_t bundle) except -1:
        if not 0 <= bundle < self.ref_cnts.shape[0]:
            raise IndexError(f"bundle {bundle} of {self.ref_cnts.shape[0]}")
        return 0

    cdef bint is_next(self, int32_t after, int32_t bundle) noexcept nogil:
        """Whether `bundle` lies right behind `after` in its chunk, so that their mappings merge."""
        return after >= 0 and bundle == after + 1 and bundle % self.chunk_bundles != 0

    # ---- actions ---------------------------------------------------------------------------

    def take(self, int32_t after=NONE):
        cdef int32_t bundle = after + 1
        if not (self.is_next(after, bundle) and self._is_free(bundle)):
            bundle = self._roomiest()
            if bundle == NONE and not self._grow(&bundle):
                return None
        self._reference(bundle, 1)
        return bundle

    def bind(self, int32_t bundle):
        self._check(bundle)
        self._reference(bundle, 1)

    def unbind(self, int32_t bundle):
        self._check(bundle)
        self._dereference(bundle, 1)

    def retain(self, int32_t bundle):
        self._check(bundle)
        self._reference(bundle, 0)

    def release(self, int32_t bundle):
        self._check(bundle)
        self._dereference(bundle, 0)

    def trim(self):
        """Frees the chunks that nobody holds a bundle of. No slot may still map them."""
        cdef Py_ssize_t chunk
        for chunk in range(self.sizes.shape[0]):
            if self.sizes[chunk] > 0 and self.held[chunk] == 0:
                self.free_heap(self.heaps[chunk])
                self.heaps[chunk] = None
                self.num_bundles -= self.sizes[chunk]
                self.sizes[chunk] = 0

    cdef int _reference(self, int32_t bundle, int32_t binding) except -1:
        if self.ref_cnts[bundle] == 0:
            self.held[bundle // self.chunk_bundles] += 1
            self.num_held += 1
        self.num_bound += binding > 0 and self.bind_cnts[bundle] == 0
        self.ref_cnts[bundle] += 1
        self.bind_cnts[bundle] += binding
        return 0

    cdef int _dereference(self, int32_t bundle, int32_t binding) except -1:
        if self.ref_cnts[bundle] <= 0 or self.bind_cnts[bundle] < binding:
            raise RuntimeError(f"bundle {bundle} is given back more often than it was taken")
        self.ref_cnts[bundle] -= 1
        self.bind_cnts[bundle] -= binding
        self.num_bound -= binding > 0 and self.bind_cnts[bundle] == 0
        if self.ref_cnts[bundle] == 0:
            self.held[bundle // self.chunk_bundles] -= 1
            self.num_held -= 1
        return 0

    cdef bint _is_free(self, int32_t bundle) noexcept nogil:
        cdef int32_t chunk = bundle // self.chunk_bundles
        return bundle % self.chunk_bundles < self.sizes[chunk] and self.ref_cnts[bundle] == 0

    cdef int32_t _roomiest(self) noexcept nogil:
        """A start in the longest free run: its middle, so that its neighbour can grow too."""
        cdef int32_t chunk, i, base, length, best = NONE, best_length = 0
        for chunk in range(<int32_t>self.sizes.shape[0]):
            base = chunk * self.chunk_bundles
            length = 0
            for i in range(self.sizes[chunk] if self.held[chunk] < self.sizes[chunk] else 0):
                length = length + 1 if self.ref_cnts[base + i] == 0 else 0
                if length > best_length:
                    best_length = length
                    best = base + i + 1 - length
        if best % self.chunk_bundles != 0:
            best += best_length // 2
        return best

    cdef bint _grow(self, int32_t *bundle) except -1:
        """Adds a chunk if the budget allows one."""
        cdef int32_t chunk, size
        for chunk in range(<int32_t>self.sizes.shape[0]):
            if self.sizes[chunk] == 0:
                size = min(self.chunk_bundles, self.max_bundles - chunk * self.chunk_bundles)
                self.heaps[chunk] = self.new_heap(size)
                self.sizes[chunk] = size
                self.num_bundles += size
                bundle[0] = chunk * self.chunk_bundles
                return True
        return False


cdef class SlotMap:
    cdef BundlePool pool
    cdef uint32_t[::1] buffers  # [tiles]
    cdef uint64_t[::1] tile_pages   # [tiles] pages of a tile
    cdef int32_t blocks_per_slot
    cdef int32_t[::1] runs_of_slot  # [slots] mappings of a slot per tile
    cdef int32_t[::1] last_bundle   # [slots] bundle of the last mapped block
    cdef int32_t[::1] num_mapped    # [slots] blocks
    cdef readonly int32_t num_runs
    cdef readonly int32_t max_runs
    cdef Run *queued  # for the next submission
    cdef Py_ssize_t num_queued, max_queued
    cdef object ops

    def __cinit__(
        self, BundlePool pool not None, buffers, int32_t num_slots, int32_t blocks_per_slot,
        tile_pages, int32_t max_runs,
    ):
        self.pool = pool
        self.buffers = np.array(buffers, np.uint32)
        self.blocks_per_slot = blocks_per_slot
        self.tile_pages = np.array(tile_pages, np.uint64)
        self.max_runs = max_runs
        self.runs_of_slot = np.zeros(num_slots, np.int32)
        self.last_bundle = np.full(num_slots, NONE, np.int32)
        self.num_mapped = np.zeros(num_slots, np.int32)
        self.ops = np.zeros(len(buffers), abi.MAP_OP)

    def __dealloc__(self):
        free(self.queued)

    # ---- questions -------------------------------------------------------------------------

    @property
    def is_empty(self):
        """Whether no operation waits for a submission."""
        return self.num_queued == 0

    def has_room(self, int32_t num_bundles):
        """Whether so many more bundles fit the limit on mappings, wherever they lie."""
        return self.num_runs + num_bundles <= self.max_runs

    def runs_in(self, int32_t slot):
        return self.runs_of_slot[slot]

    # ---- actions ---------------------------------------------------------------------------

    def map(self, int32_t slot, int32_t bundle):
        """Shows a bundle in the slot's next block."""
        cdef int32_t block = self.num_mapped[slot]
        if block >= self.blocks_per_slot:
            raise IndexError(f"block {block} of a slot of {self.blocks_per_slot}")
        cdef bint merges = self.pool.is_next(self.last_bundle[slot], bundle)
        if not merges:
            self.runs_of_slot[slot] += 1
            self.num_runs += 1
        self.last_bundle[slot] = bundle
        self.num_mapped[slot] = block + 1
        cdef Run *last
        if merges and self.num_queued > 0:
            last = &self.queued[self.num_queued - 1]
            if (last.kind == MAP and last.slot == slot
                    and last.block + last.num_blocks == block):
                last.num_blocks += 1
                return
        self._queue(Run(MAP, slot, block, bundle, 1))

    def unmap(self, int32_t slot):
        """Takes all blocks of a slot away."""
        if self.num_mapped[slot] == 0:
            return
        self._queue(Run(UNMAP, slot, 0, NONE, self.num_mapped[slot]))
        self.num_runs -= self.runs_of_slot[slot]
        self.runs_of_slot[slot] = 0
        self.last_bundle[slot] = NONE
        self.num_mapped[slot] = 0

    def take_ops(self):
        """The queued operations as records for a submission, valid until the next call; None if
        none.
        """
        if self.num_queued == 0:
            return None
        cdef Py_ssize_t num_tiles = self.buffers.shape[0], num_ops = self.num_queued * num_tiles
        if len(self.ops) < num_ops:
            self.ops = np.zeros(2 * num_ops, abi.MAP_OP)
        cdef uint64_t[::1] words = self.ops.view(np.uint64)
        cdef MapOp *op = <MapOp *>&words[0]
        cdef Py_ssize_t i
        for i in range(self.num_queued):
            self._write(&self.queued[i], op + i * num_tiles)
        self.num_queued = 0
        return self.ops[:num_ops]

    cdef int _write(self, const Run *run, MapOp *ops) except -1:
        """One operation per tile."""
        cdef uint64_t first = <uint64_t>run.slot * self.blocks_per_slot + run.block
        cdef uint32_t heap = NO_HEAP
        cdef uint64_t size = 0, index = 0, pages, first_page = 0
        cdef Py_ssize_t tile
        if run.kind == MAP:
            heap = self.pool.heaps[run.bundle // self.pool.chunk_bundles]
            size = self.pool.sizes[run.bundle // self.pool.chunk_bundles]
            index = run.bundle % self.pool.chunk_bundles
        for tile in range(self.buffers.shape[0]):
            pages = self.tile_pages[tile]
            ops[tile].kind = run.kind
            ops[tile].buffer = self.buffers[tile]
            ops[tile].heap = heap
            ops[tile].reserved = 0
            ops[tile].page = first * pages
            ops[tile].heap_page = first_page * size + index * pages
            ops[tile].num_pages = run.num_blocks * pages
            first_page += pages
        return 0

    cdef int _queue(self, Run run) except -1:
        if self.num_queued == self.max_queued:
            self.max_queued = 2 * self.max_queued + 16
            more = <Run *>realloc(self.queued, self.max_queued * sizeof(Run))
            if more == NULL:
                raise MemoryError("map operations")
            self.queued = more
        self.queued[self.num_queued] = run
        self.num_queued += 1
        return 0


cdef uint32_t MAP = abi.MAP
cdef uint32_t UNMAP = abi.UNMAP
cdef uint32_t NO_HEAP = abi.NO_ID
