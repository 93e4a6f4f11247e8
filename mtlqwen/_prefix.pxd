from libc.stdint cimport int32_t

from mtlqwen._bindings cimport BundlePool


cdef class Node:
    cdef Node parent
    cdef bytes key
    cdef int32_t[::1] tokens  # of this chunk; None in the root
    cdef dict children        # key -> Node
    cdef list entries         # that end before the next whole chunk


cdef class Entry:
    cdef Node node
    cdef int32_t[::1] tail    # tokens since the node
    cdef readonly Py_ssize_t num_tokens
    cdef readonly bytes key
    cdef readonly list bundles
    cdef readonly object state  # uint8 [state_bytes]; None while cold
    cdef public object path     # file that holds a copy, or None
    cdef public bint durable    # worth a copy on disk


cdef class PrefixCache:
    cdef readonly Py_ssize_t chunk_tokens
    cdef readonly Py_ssize_t max_bytes
    cdef readonly Py_ssize_t state_bytes
    cdef readonly Py_ssize_t num_bytes
    cdef readonly Py_ssize_t num_evictions
    cdef BundlePool pool
    cdef Node root
    cdef object warm  # OrderedDict of entries with a state, least recently used first
    cdef Node _child(self, Node node, const int32_t[::1] tokens, Py_ssize_t depth)
