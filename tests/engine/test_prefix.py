"""PrefixCache: what is found, what is kept, what goes first."""

import hypothesis.strategies as st
import numpy as np
import pytest
from engine_harness import random_ids
from hypothesis import given

from mtlqwen._bindings import BundlePool
from mtlqwen._prefix import PrefixCache

BLOCK, CHUNK, STATE = 4, 8, 16


class Cache:
    """A prefix cache with entries made of bundles of its own."""

    def __init__(self, snapshots=100, bundles=200, model_id=b"model"):
        self.pool = BundlePool(bundles, bundles, lambda n: 1, lambda heap: None)
        self.prefix = PrefixCache(
            self.pool,
            model_id,
            state_bytes=STATE,
            max_bytes=snapshots * STATE,
            chunk_tokens=CHUNK,
        )

    def publish(self, ids, shared_bundles=()):
        """An entry whose first bundles are `shared_bundles`; its sequence is gone already."""
        bundles = list(shared_bundles)
        for bundle in bundles:
            self.pool.bind(bundle)
        while len(bundles) * BLOCK < len(ids):
            bundles.append(self.pool.take(bundles[-1] if bundles else -1))
        entry = self.prefix.publish(array(ids), bundles, self.prefix.make_room())
        for bundle in bundles:
            self.pool.unbind(bundle)
        return entry

    def lookup(self, ids):
        return self.prefix.lookup(array(ids))


def array(ids):
    return np.array(ids, np.int32)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 16, 23])
def test_the_longest_entry_that_the_prompt_begins_with_is_found(length):
    cache, ids = Cache(), random_ids(1, 40)
    entries = {n: cache.publish(ids[:n]) for n in (1, 5, 8, 16, 23)}
    entry, shared = cache.lookup(ids[: length + 1])
    assert entry is entries[max(n for n in entries if n <= length)]
    assert shared == min(length + 1, 23)


def test_at_least_one_token_is_left_to_compute():
    cache, ids = Cache(), random_ids(1, 16)
    whole, half = cache.publish(ids), cache.publish(ids[:8])
    assert cache.lookup(ids) == (half, 16)
    assert cache.lookup([*ids, 1]) == (whole, 16)


def test_nothing_is_found_where_the_first_token_differs():
    cache = Cache()
    cache.publish([1, 2, 3])
    assert cache.lookup([9, 2, 3, 4]) == (None, 0)


@pytest.mark.parametrize("common", [1, 7, 8, 12, 16, 20, 24, 29])
def test_the_point_of_divergence_is_known_to_the_token(common):
    cache, ids = Cache(), random_ids(1, 30)
    cache.publish(ids)
    other = [*ids[:common], (ids[common] + 1) % 50, *random_ids(2, 30)]
    assert cache.lookup(other) == (None, common)


def test_entries_are_of_one_model():
    first, second = Cache(), Cache(model_id=b"other")
    ids = random_ids(1, 20)
    assert first.publish(ids).key != second.publish(ids).key


def test_equal_keys_of_different_tokens_are_told_apart(monkeypatch):
    """A hash that always collides may cost hits, never correctness."""
    import mtlqwen._prefix as module

    class Constant:
        def __init__(self, data, digest_size):
            self.size = digest_size

        def digest(self):
            return bytes(self.size)

    monkeypatch.setattr(module, "blake2b", Constant)
    cache = Cache()
    a, b = random_ids(1, 20), random_ids(2, 20)
    entry = cache.publish(a)
    assert cache.lookup([*a, 1]) == (entry, 20)
    assert cache.lookup([*b, 1])[0] is None
    assert cache.prefix.insert(array(b)) is None


def test_an_entry_refers_to_its_bundles_until_it_is_evicted():
    cache = Cache()
    entry = cache.publish(random_ids(1, 10))
    assert [cache.pool.ref_cnt(b) for b in entry.bundles] == [1, 1, 1]
    cache.prefix.evict(entry)
    assert cache.pool.num_held == 0 and len(cache.prefix) == 0
    assert cache.lookup(random_ids(1, 10)) == (None, 0)


def test_the_least_recently_used_entry_makes_room():
    cache = Cache(snapshots=3)
    ids = [random_ids(seed, 10) for seed in range(4)]
    entries = [cache.publish(i) for i in ids[:3]]
    cache.prefix.touch(entries[0])
    cache.publish(ids[3])
    assert cache.prefix.num_bytes == 3 * STATE
    assert [cache.lookup([*i, 1])[0] is not None for i in ids] == [True, False, True, True]


def test_a_budget_below_one_state_disables_the_cache():
    cache = Cache(snapshots=0)
    assert not cache.prefix.is_enabled
    assert cache.prefix.make_room() is None


def test_a_second_entry_of_the_same_tokens_is_refused():
    cache, ids = Cache(), random_ids(1, 10)
    cache.publish(ids)
    with pytest.raises(ValueError, match="these 10 tokens"):
        cache.publish(ids)


def test_a_bundle_is_freed_by_the_entry_that_alone_holds_it():
    cache, ids = Cache(), random_ids(1, 16)
    short = cache.publish(ids[:8])
    cache.publish(ids, shared_bundles=short.bundles)
    assert cache.prefix.free_bundle()
    assert cache.prefix.entries == [short], "the short one is older but frees nothing"
    assert cache.prefix.free_bundle()
    assert not cache.prefix.free_bundle()


def test_entries_that_share_their_last_bundle_are_evicted_until_it_is_free():
    cache, ids = Cache(), random_ids(1, 8)
    first = cache.publish(ids[:7])
    cache.publish(ids, shared_bundles=first.bundles)
    assert cache.prefix.free_bundle()
    assert len(cache.prefix) == 0 and cache.pool.num_held == 0


def test_what_a_sequence_binds_is_not_evicted_for_a_bundle():
    cache = Cache()
    entry = cache.publish(random_ids(1, 8))
    for bundle in entry.bundles:
        cache.pool.bind(bundle)
    assert not cache.prefix.free_bundle()
    assert cache.prefix.entries == [entry]


def test_an_entry_with_a_file_turns_cold_and_warm_again():
    cache, ids = Cache(), random_ids(1, 10)
    entry = cache.publish(ids)
    entry.path = "somewhere"
    cache.prefix.evict(entry)
    assert entry.is_cold and cache.lookup([*ids, 1]) == (entry, 10)
    assert entry.tokens.tolist() == ids
    assert cache.publish(ids) is entry and not entry.is_cold


def test_evicted_memory_is_used_again():
    cache = Cache(snapshots=1)
    memory = cache.publish(random_ids(1, 5)).state
    assert cache.prefix.make_room() is memory


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(7, set()), (8, {8}), (39, {8, 16, 24, 32}), (200, {64, 128, 192, 200})],
)
def test_the_grid_of_a_long_prompt_thins_but_keeps_its_last_point(num_tokens, expected):
    assert Cache(snapshots=16).prefix.grid(num_tokens) == expected


@given(
    published=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), max_size=12),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30),
    evicted=st.lists(st.integers(0, 11), max_size=6),
)
def test_lookup_equals_a_search_through_all_entries(published, prompt, evicted):
    cache, entries = Cache(), {}
    for ids in published:
        if tuple(ids) not in entries:
            entries[tuple(ids)] = cache.publish(ids)
    for index in evicted:
        if index < len(entries):
            ids = list(entries)[index]
            cache.prefix.evict(entries.pop(ids))
    assert {tuple(e.tokens.tolist()) for e in cache.prefix.entries} == set(entries)

    def common(a, b):
        return next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )

    usable = [ids for ids in entries if len(ids) < len(prompt) and common(ids, prompt) == len(ids)]
    best = entries[max(usable, key=len)] if usable else None
    assert cache.lookup(prompt) == (best, max((common(i, prompt) for i in entries), default=0))
    for ids, entry in entries.items():
        assert cache.prefix.find(array(ids)) is entry
    cache.prefix.clear()
    assert cache.pool.num_held == cache.prefix.num_bytes == 0
