"""Prefix cache: where a prompt begins like an earlier one, its GDN state and K/V bundles are taken
over.

A trie of token chunks, each keyed by a hash chained over (parent key, tokens of the chunk) from the
model's identity on. An entry hangs at the node of its last whole chunk and holds the tokens since
then. Hashes only find; what is used was compared token by token.
"""

from collections import OrderedDict
from hashlib import blake2b

from libc.stdint cimport int32_t

import numpy as np

from mtlqwen._bindings cimport BundlePool
from mtlqwen._sequence cimport common_prefix


cdef class Node:
    def __cinit__(self, Node parent, bytes key, int32_t[::1] tokens):
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.children = {}
        self.entries = []


cdef class Entry:
    @property
    def is_cold(self):
        return self.state is None

    @property
    def tokens(self):
        cdef list parts = [np.asarray(self.tail)]
        cdef Node node = self.node
        while node.parent is not None:
            parts.append(np.asarray(node.tokens))
            node = node.parent
        return np.concatenate(parts[::-1])


cdef class PrefixCache:
    def __cinit__(
        self, BundlePool pool not None, bytes model_id not None, *,
        Py_ssize_t state_bytes, Py_ssize_t max_bytes, Py_ssize_t chunk_tokens=512,
    ):
        if chunk_tokens < 1 or state_bytes < 1:
            raise ValueError(f"chunks of {chunk_tokens} tokens, states of {state_bytes} bytes")
        self.pool = pool
        self.chunk_tokens = chunk_tokens
        self.state_bytes = state_bytes
        self.max_bytes = max_bytes
        self.root = Node(None, digest(b"", model_id), None)
        self.warm = OrderedDict()

    # ---- questions -------------------------------------------------------------------------

    @property
    def is_enabled(self):
        return self.max_bytes >= self.state_bytes

    @property
    def entries(self):
        return list(self.warm)

    def __len__(self):
        return len(self.warm)

    def grid(self, Py_ssize_t num_tokens):
        """Multiples of chunk_tokens to publish in a prompt of `num_tokens`.

        A long prompt skips some, so that it cannot flush more than a quarter of the cache; never
        the last.
        """
        cdef Py_ssize_t num_chunks = num_tokens // self.chunk_tokens
        cdef Py_ssize_t most = max(self.max_bytes // (4 * self.state_bytes), 1)
        cdef Py_ssize_t stride = 1
        while num_chunks // stride > most:
            stride *= 2  # so that prompts of different lengths publish at common points
        points = {chunk * self.chunk_tokens for chunk in range(stride, num_chunks + 1, stride)}
        return points | ({num_chunks * self.chunk_tokens} if num_chunks else set())

    def lookup(self, const int32_t[::1] tokens not None):
        """The longest entry that leaves at least one of `tokens` to compute, and how many leading
        tokens are shared with anything known, entry or not.
        """
        cdef Node node = self.root
        cdef Node child
        cdef Entry entry, best = None
        cdef Py_ssize_t depth = 0, shared = 0, n, total = tokens.shape[0]
        while True:
            for entry in node.entries:
                n = agreement(entry.tail, tokens, depth)
                shared = max(shared, depth + n)
                if n == entry.tail.shape[0] and depth + n < total:
                    if best is None or best.num_tokens < entry.num_tokens:
                        best = entry
            child = self._child(node, tokens, depth)
            if child is None:
                break
            node = child
            depth += self.chunk_tokens
            shared = max(shared, depth)
        for child in node.children.values():
            shared = max(shared, depth + agreement(child.tokens, tokens, depth))
        return best, shared

    def find(self, const int32_t[::1] tokens not None):
        """The entry for exactly these tokens, or None."""
        cdef Node node = self.root, child
        cdef Entry entry
        cdef Py_ssize_t depth = 0
        while True:
            child = self._child(node, tokens, depth)
            if child is None:
                break
            node = child
            depth += self.chunk_tokens
        if tokens.shape[0] - depth < self.chunk_tokens:
            for entry in node.entries:
                if entry.num_tokens == tokens.shape[0] and \
                        agreement(entry.tail, tokens, depth) == entry.tail.shape[0]:
                    return entry
        return None

    cdef Node _child(self, Node node, const int32_t[::1] tokens, Py_ssize_t depth):
        """The node of the next whole chunk of `tokens`, if it is known."""
        cdef Node child
        if depth + self.chunk_tokens > tokens.shape[0] or not node.children:
            return None
        child = node.children.get(digest(node.key, tokens[depth:depth + self.chunk_tokens]))
        if child is None or agreement(child.tokens, tokens, depth) < self.chunk_tokens:
            return None
        return child

    # ---- actions ---------------------------------------------------------------------------

    def touch(self, Entry entry not None):
        """Makes an entry the most recently used."""
        if entry in self.warm:
            self.warm.move_to_end(entry)

    def make_room(self):
        """Memory for one more state, the least recently used entries gone; None if the budget has
        none.
        """
        if not self.is_enabled:
            return None
        cdef object memory = None
        while self.num_bytes + self.state_bytes > self.max_bytes:
            memory = self.evict(next(iter(self.warm)))
        return np.empty(self.state_bytes, np.uint8) if memory is None else memory

    def publish(self, const int32_t[::1] tokens not None, list bundles not None, state not None):
        """Adds an entry, or warms the cold one of these tokens; refers to each bundle."""
        cdef Entry entry = self.find(tokens)
        if entry is None:
            entry = self.insert(tokens)
            if entry is None:
                return None
        elif not entry.is_cold:
            raise ValueError(f"an entry of these {tokens.shape[0]} tokens exists")
        for bundle in bundles:
            self.pool.retain(bundle)
        entry.bundles = bundles
        entry.state = state
        self.warm[entry] = None
        self.num_bytes += self.state_bytes
        return entry

    def insert(self, const int32_t[::1] tokens not None):
        """Adds a cold entry; None in the unheard-of case that two chunks have one hash."""
        cdef Node node = self.root, child
        cdef Py_ssize_t depth = 0, end = tokens.shape[0]
        while depth + self.chunk_tokens <= end:
            child = self._child(node, tokens, depth)
            if child is None:
                chunk = np.array(tokens[depth:depth + self.chunk_tokens], np.int32)
                key = digest(node.key, chunk)
                if key in node.children:
                    return None
                child = Node(node, key, chunk)
                node.children[key] = child
            node = child
            depth += self.chunk_tokens
        cdef Entry entry = Entry()
        entry.node = node
        entry.tail = np.array(tokens[depth:], np.int32)
        entry.key = digest(node.key, entry.tail)
        entry.num_tokens = end
        entry.bundles = []
        node.entries.append(entry)
        return entry

    def evict(self, Entry entry not None):
        """Gives the bundles of a warm entry back and returns its memory. It stays, cold, if it has
        a file.
        """
        del self.warm[entry]
        for bundle in entry.bundles:
            self.pool.release(bundle)
        memory, entry.state, entry.bundles = entry.state, None, []
        self.num_bytes -= self.state_bytes
        self.num_evictions += 1
        if entry.path is None:
            self.remove(entry)
        return memory

    def remove(self, Entry entry not None):
        """Forgets a cold entry, and the nodes that nothing hangs at any more."""
        cdef Node node = entry.node
        node.entries.remove(entry)
        while node.parent is not None and not node.children and not node.entries:
            del node.parent.children[node.key]
            node = node.parent

    def free_bundle(self):
        """Evicts until a bundle is free; False if sequences bind all that is left.

        First the least recently used entry that alone holds its last bundle: evicting one whose
            bundles longer entries share as well would lose a state and free nothing.
        """
        cdef Entry entry
        cdef int32_t held = self.pool.num_held
        for most_refs in (1, None):
            for entry in list(self.warm):
                last = entry.bundles[len(entry.bundles) - 1]
                if self.pool.is_bound(last) or (most_refs and self.pool.ref_cnt(last) > most_refs):
                    continue
                self.evict(entry)
                if self.pool.num_held < held:
                    return True
        return False

    def clear(self):
        """Evicts and forgets everything."""
        for entry in list(self.warm):
            entry.path = None
            self.evict(entry)
        self.root.children.clear()
        self.root.entries.clear()


cdef bytes digest(bytes parent, tokens):
    return blake2b(parent + bytes(memoryview(tokens)), digest_size=16).digest()


cdef Py_ssize_t agreement(
    const int32_t[::1] known, const int32_t[::1] tokens, Py_ssize_t depth
) noexcept:
    """How many leading tokens of `known` equal those of `tokens` from `depth` on."""
    cdef Py_ssize_t count = min(known.shape[0], tokens.shape[0] - depth)
    if count <= 0:
        return 0
    return common_prefix(&known[0], &tokens[depth], count)
