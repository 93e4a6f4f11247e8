from libc.stdint cimport int32_t


cdef class BundlePool:
    cdef readonly int32_t max_bundles
    cdef readonly int32_t chunk_bundles
    cdef readonly int32_t num_bundles  # in chunks that exist
    cdef readonly int32_t num_held     # with a reference
    cdef readonly int32_t num_bound    # bound by a sequence
    cdef object new_heap, free_heap
    cdef list heaps              # of each chunk: heap id, or None
    cdef int32_t[::1] sizes      # [chunks] bundles of a chunk, 0 = no chunk
    cdef int32_t[::1] held       # [chunks] bundles with a reference
    cdef int32_t[::1] ref_cnts   # [bundles] bindings and prefix entries
    cdef int32_t[::1] bind_cnts  # [bundles] bindings alone
    cdef int _check(self, int32_t bundle) except -1
    cdef bint is_next(self, int32_t after, int32_t bundle) noexcept nogil
    cdef int _reference(self, int32_t bundle, int32_t binding) except -1
    cdef int _dereference(self, int32_t bundle, int32_t binding) except -1
    cdef bint _is_free(self, int32_t bundle) noexcept nogil
    cdef int32_t _roomiest(self) noexcept nogil
    cdef bint _grow(self, int32_t *bundle) except -1
