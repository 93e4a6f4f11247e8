"""An engine over the fake runner, with the invariants that hold between any two steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from fake_runner import FakeRunner

from mtlqwen.engine import Engine
from mtlqwen.sampling import SamplingParams
from mtlqwen.speculation import MAX_DRAFTS


class Client:
    """One request and everything that came back for it."""

    def __init__(self, ids, params, stop_ids):
        self.ids, self.params, self.stop_ids = ids, params, stop_ids
        self.outputs = []
        self.request = None

    @property
    def tokens(self):
        return [token for output in self.outputs for token in output.tokens]

    @property
    def finish_reason(self):
        return self.outputs[-1].finish_reason if self.outputs else None

    @property
    def cached_tokens(self):
        return self.outputs[-1].cached_tokens


class OracleDrafts:
    """Right at the positions where `is_right` says so, wrong by one elsewhere."""

    max_drafts, block_rows, likelihood = MAX_DRAFTS, 1 + MAX_DRAFTS, (0.7, 0.85)

    def __init__(self, is_right=lambda position: True, wants=lambda sequence: True):
        self.is_right, self.wants = is_right, wants
        self.oracle = None

    def propose(self, sequence, count):
        if not self.wants(sequence):
            return np.empty(0, np.int32)
        tokens = self.oracle.generate(sequence.tokens(), count)
        first, num_tokens = sequence.num_tokens, self.oracle.num_tokens
        wrong = [not self.is_right(first + i) for i in range(count)]
        return ((np.array(tokens) + wrong) % num_tokens).astype(np.int32)


def often(period):
    return lambda position: position % period != 0


class Harness:
    """`runner` options go to FakeRunner, the others to Engine."""

    def __init__(self, runner=None, *, bundles=None, heap_bundles=64, snapshots=8, **engine):
        self.runner = FakeRunner(**(runner or {}))
        self.oracle = self.runner.oracle()
        chunk_bytes = heap_bundles * self.runner.bundle_bytes
        with patch("mtlqwen.kv_memory.CHUNK_BYTES", chunk_bytes):
            self.engine = Engine(
                self.runner,
                kv_memory_bytes=None if bundles is None else bundles * self.runner.bundle_bytes,
                prefix_memory_bytes=snapshots * self.runner.state_bytes,
                **{"prefix_chunk_tokens": 64, **engine},
            )
        self.clients: list[Client] = []

    def submit(self, ids, max_tokens=8, *, stop_ids=(), checkpoints=(), **params):
        client = Client(list(ids), SamplingParams(max_tokens=max_tokens, **params), stop_ids)
        client.request = self.engine.submit(
            client.ids,
            client.params,
            stop_ids=stop_ids,
            checkpoints=checkpoints,
            on_output=client.outputs.append,
        )
        self.clients.append(client)
        return client

    def step(self, count=1):
        """Steps and checks; whether the last step did anything."""
        worked = False
        for _ in range(count):
            worked = self.engine.step()
            self.check_memory()
        return worked

    def drain(self, most=100_000):
        """Steps until nothing is left to do."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError(f"not finished after {most} steps")

    def run(self, ids, max_tokens=8, **options):
        """One request alone, to its end, checked."""
        client = self.submit(ids, max_tokens, **options)
        self.drain()
        self.check_tokens(client)
        return client

    def expected(self, client):
        """Tokens and finish reason of a lone cold run."""
        room = self.engine.memory.max_context - len(client.ids)
        count = min(client.params.max_tokens or room, room)
        tokens = self.oracle.generate(client.ids, count)
        ends = set(client.params.stop_ids)
        if not client.params.ignore_eos:
            ends |= set(client.stop_ids)
        for index, token in enumerate(tokens):
            if token in ends:
                return tokens[:index], "stop"
        return tokens, "length"

    def check_tokens(self, client):
        """What was delivered is what a lone cold run gives; all of it unless it was cancelled."""
        tokens, reason = self.expected(client)
        assert [o.finish_reason for o in client.outputs[:-1]] == [None] * (len(client.outputs) - 1)
        if client.finish_reason in ("cancelled", None):
            assert client.tokens == tokens[: len(client.tokens)]
        else:
            assert (client.tokens, client.finish_reason) == (tokens, reason)

    def check_memory(self):
        engine = self.engine
        memory, block = engine.memory, self.runner.block_tokens
        pool, entries = memory.pool, memory.prefix.entries
        bound = Counter(b for s in engine.live for b in s.bindings)
        cached = Counter(b for e in entries for b in e.bundles)
        for bundle in bound.keys() | cached.keys():
            assert pool.ref_cnt(bundle) == bound[bundle] + cached[bundle]
            assert pool.is_bound(bundle) == (bound[bundle] > 0)
        assert pool.num_bound == len(bound)
        assert pool.num_held == len(bound.keys() | cached.keys())
        assert pool.num_held + pool.num_free == pool.num_bundles <= pool.max_bundles
        for sequence in engine.live:
            writable = sequence.bindings[sequence.kv_valid // block :]
            assert all(bound[bundle] == 1 for bundle in writable), "two may write one bundle"
            assert sequence.num_blocks * block >= sequence.kv_valid
            assert sequence.kv_valid < sequence.next_checkpoint, "ran across a checkpoint"
        assert memory.prefix.num_bytes == len(entries) * self.runner.state_bytes
        assert memory.prefix.num_bytes <= memory.prefix.max_bytes
        for entry in entries:
            assert len(entry.bundles) == -(-entry.num_tokens // block)
        self._check_slots()
        self._check_mappings()

    def _check_slots(self):
        live, waiting = self.engine.live, self.engine.admission.waiting
        slots = [s.slot for s in live]
        assert len(set(slots)) == len(slots) <= self.runner.max_slots
        assert sorted(slots + self.engine._free_slots) == list(range(self.runner.max_slots))
        assert all(a.number < b.number for a, b in pairwise(live))
        assert all(a.number < b.number for a, b in pairwise(waiting))
        assert not any(s.active for s in waiting)

    def _check_mappings(self):
        """The device shows each slot the bundles of its sequence, once nothing is queued."""
        memory, runner = self.engine.memory, self.runner
        if not memory.map.is_empty:
            return
        assert runner.num_mapped_pages == sum(
            s.num_blocks * runner.bundle_pages for s in self.engine.live
        )
        for sequence in self.engine.live:
            assert runner.bundles_of_slot(sequence.slot) == [
                memory.pool.place(bundle) for bundle in sequence.bindings
            ]

    def close(self):
        """Nothing may be left behind."""
        self.engine.close()
        assert self.runner.num_heaps == 0
        assert self.runner.num_mapped_pages == 0


def drafting_harness(drafts, width, *, runner=None, **options):
    """A harness with a drafter that looks at its context, and drafts from an OracleDrafts."""
    h = Harness({"drafter": True, **(runner or {})}, drafts=drafts, draft_width=width, **options)
    drafts.oracle = h.oracle
    return h


def random_ids(seed, count, num_tokens=50):
    return np.random.default_rng(seed).integers(0, num_tokens, count).tolist()
