"""K/V memory: never fails a running request, never keeps what nobody needs."""

import resource

import pytest
from engine_harness import Harness, random_ids
from fake_runner import FakeRunner

from mtlqwen.engine import Engine
from mtlqwen.errors import LimitError, MtlqError, OutOfMemory


def test_preempted_requests_finish_with_the_same_tokens():
    harness = Harness({"max_slots": 4}, bundles=10, snapshots=0)
    clients = [harness.submit(random_ids(s, 20), 100) for s in range(4)]
    harness.drain()
    assert harness.engine.stats.preemptions > 0
    for client in clients:
        harness.check_tokens(client)
    harness.close()


def test_the_youngest_is_preempted_and_the_oldest_never():
    harness = Harness({"max_slots": 3}, bundles=8, snapshots=0)
    clients = [harness.submit(random_ids(s, 16), 90) for s in range(3)]
    oldest = clients[0].request.sequence
    while not oldest.request.finish_reason:
        harness.step()
        live = [s.number for s in harness.engine.live]
        waiting = [s.number for s in harness.engine.admission.waiting]
        assert oldest.active or oldest.request.finish_reason
        assert not waiting or not live or max(live) < min(waiting)
    harness.drain()


def test_prefix_entries_go_before_anybody_is_preempted():
    harness = Harness({"max_slots": 2}, bundles=12)
    for s in range(3):
        harness.run(random_ids(s, 60), 2)
    assert harness.engine.stats.bundles_cached > 8
    clients = [harness.submit(random_ids(10 + s, 80), 8) for s in range(2)]
    harness.drain()
    assert harness.engine.stats.preemptions == 0
    for client in clients:
        harness.check_tokens(client)


def test_a_request_as_large_as_the_pool_runs_beside_cached_prefixes():
    harness = Harness({"max_context": 256}, bundles=4)
    ids = random_ids(1, 40)
    harness.run(ids, 5, checkpoints=[37])
    whole = harness.run([*ids, *random_ids(2, 20)], None)
    assert len(whole.tokens) == 4 * 16 - 60
    harness.close()


def test_a_seeded_request_draws_the_same_tokens_after_preemption():
    def tokens(bundles):
        harness = Harness({"max_slots": 2}, bundles=bundles, snapshots=0)
        harness.submit(random_ids(1, 20), 70)
        client = harness.submit(
            random_ids(2, 20), 60, temperature=0.8, seed=5, presence_penalty=0.5
        )
        harness.drain()
        return client.tokens, harness.engine.stats.preemptions

    roomy, none = tokens(64)
    tight, some = tokens(7)
    assert none == 0 < some and roomy == tight


def test_chunks_are_given_back_when_the_last_request_ends():
    harness = Harness(snapshots=0)
    assert harness.runner.num_heaps == 0
    harness.submit(random_ids(1, 100), 3)
    harness.step()
    assert harness.runner.num_heaps == 1
    harness.drain()
    assert harness.runner.num_heaps == 0 and harness.runner.num_mapped_pages == 0


def test_a_lone_sequence_is_one_mapping_per_cache_and_layer():
    harness = Harness({"max_context": 256})
    harness.submit(random_ids(1, 200), 30)
    harness.step(5)
    assert harness.engine.stats.mappings == harness.runner.num_tiles


def test_map_operations_are_few():
    """One operation per tile and pass that crosses a block, one per tile at the end."""
    harness = Harness({"pass_tokens": 64}, snapshots=0)
    harness.run(random_ids(1, 64), 1)
    assert harness.runner.num_map_ops == 2 * harness.runner.num_tiles


def mappings_limit(runs, **options):
    """A limit that leaves so many runs per tile beside the reserve."""
    slots = FakeRunner(**options).max_slots
    return 1024 + 3 * (slots + 1) + 3 * runs


def test_a_limit_on_mappings_below_one_sequence_is_refused_with_the_remedy():
    runner = FakeRunner(max_context=256, max_mappings=mappings_limit(15))
    with pytest.raises(LimitError, match=r"sequence of 256 tokens may need 48 .*max_map_count"):
        Engine(runner)


def test_a_tight_limit_on_mappings_preempts_instead_of_failing():
    harness = Harness({"max_context": 256, "max_mappings": mappings_limit(16)}, snapshots=6)
    clients = [harness.submit([*random_ids(s % 2, 30), *random_ids(s, 30)], 50) for s in range(12)]
    while harness.step():
        assert harness.engine.memory.map.num_runs <= 16
    for client in clients:
        harness.check_tokens(client)


def test_kv_memory_below_one_bundle_is_refused_with_the_numbers():
    with pytest.raises(MtlqError, match=r"of 100 bytes holds no bundle.*16 tokens takes 512 bytes"):
        Engine(FakeRunner(), kv_memory_bytes=100)


def test_a_device_with_less_memory_than_the_budget_preempts_before_it_fails_a_request():
    harness = Harness({"max_slots": 2, "arena_bundles": 8}, snapshots=0, heap_bundles=4)
    fitting = [harness.submit(random_ids(s, 30), 60) for s in range(2)]
    harness.drain()
    assert harness.engine.stats.preemptions > 0
    for client in fitting:
        harness.check_tokens(client)
    too_long = harness.submit(random_ids(3, 100), 100)
    after = harness.submit(random_ids(4, 30), 5)
    harness.drain()
    assert too_long.finish_reason == "error"
    assert isinstance(too_long.outputs[-1].error, OutOfMemory)
    harness.check_tokens(after)
    harness.close()


@pytest.mark.slow
def test_ten_thousand_steps_leak_nothing():
    harness = Harness({"max_slots": 4}, bundles=30, snapshots=6)
    engine, peak = harness.engine, []
    seed = 0
    for _ in range(10):
        for _ in range(1000):
            if len(engine.live) + len(engine.admission.waiting) < 6:
                seed += 1
                client = harness.submit(
                    [*random_ids(seed % 5, 60), *random_ids(seed, 20)], 12, checkpoints=[60]
                )
                if seed % 7 == 0:
                    engine.cancel(client.request)
                harness.clients.clear()
            engine.step()
        peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert engine.stats.steps > 9000
    assert peak[-1] - peak[1] < 2048, f"peak RSS in KiB per thousand steps: {peak}"
    harness.drain()
    harness.close()
