"""The drafter's context is complete whenever somebody drafts, and costs little while nobody does.

The fake drafter looks at the context of every position before it drafts.
"""

import pytest
from engine_harness import OracleDrafts, drafting_harness, often, random_ids


def later_than(num_tokens):
    return lambda sequence: sequence.num_tokens > num_tokens


def all_but_the_first(sequence):
    return sequence.number > 0


def test_while_nobody_drafts_rows_are_injected_when_no_more_fit():
    h = drafting_harness(OracleDrafts(), 0, runner={"pass_tokens": 32}, snapshots=0)
    h.run(random_ids(1, 20), 101)  # rows: 20 and 100
    assert h.runner.drafting.num_injections == 20 + 100 // 32 - 20
    h.close()


@pytest.mark.parametrize("aside", [0, 1, 30, 31, 32, 33, 70])
def test_who_stood_aside_drafts_in_any_pass(aside):
    drafts = OracleDrafts(often(4), later_than(12 + aside))
    h = drafting_harness(drafts, 5, runner={"pass_tokens": 32})
    h.run(random_ids(1, 12), 100)
    assert sum(h.engine.stats.accepted) > 0
    h.close()


@pytest.mark.parametrize("max_slots", [1, 4, 8])
def test_some_draft_and_some_do_not(max_slots):
    for width in (1, 4, 15):
        drafts = OracleDrafts(often(3), lambda sequence: sequence.number % 3 != 1)
        h = drafting_harness(drafts, width, runner={"max_slots": max_slots, "pass_tokens": 48})
        clients = [h.submit(random_ids(10 + i, 1 + 7 * i), 30) for i in range(9)]
        h.drain()
        for client in clients:
            h.check_tokens(client)
        assert sum(h.engine.stats.accepted) > 0
        h.close()


def test_rows_of_a_sequence_that_ended_are_not_injected_for_the_next_in_its_slot():
    runner = {"max_slots": 1, "pass_tokens": 128, "max_context": 256}
    h = drafting_harness(OracleDrafts(wants=all_but_the_first), 3, runner=runner, snapshots=0)
    h.submit(random_ids(1, 30), 20)
    h.submit(random_ids(2, 10), 20)
    h.drain()
    assert h.engine.batch.features.num_rows == 0
    h.check_tokens(h.clients[1])
    h.close()


def test_an_entry_left_by_who_did_not_draft_has_context():
    h = drafting_harness(OracleDrafts(wants=all_but_the_first), 7, runner={"pass_tokens": 64})
    prompt = random_ids(3, 25)
    first = h.run(prompt, 12)
    second = h.run([*prompt, *first.tokens, 7], 30)
    assert second.cached_tokens == 36
    h.close()


def test_an_entry_of_the_directory_has_context(tmp_path):
    prompt = random_ids(4, 40)
    first = drafting_harness(OracleDrafts(wants=lambda s: False), 7, prefix_cache_dir=tmp_path)
    tokens = first.run(prompt, 12).tokens
    first.close()
    second = drafting_harness(OracleDrafts(), 7, prefix_cache_dir=tmp_path)
    assert second.run([*prompt, *tokens, 7], 30).cached_tokens == 51
    second.close()


def test_preempted_sequences_draft_again():
    drafts = OracleDrafts(often(4), lambda sequence: sequence.num_tokens % 40 > 20)
    h = drafting_harness(drafts, 7, bundles=9, snapshots=0)
    clients = [h.submit(random_ids(20 + i, 20), 60) for i in range(4)]
    h.drain()
    assert h.engine.stats.preemptions > 0
    for client in clients:
        h.check_tokens(client)
    h.close()


def test_a_width_of_its_own_choice_comes_back_when_drafts_get_right():
    drafts = OracleDrafts(is_right=lambda position: position > 300)
    h = drafting_harness(drafts, None, runner={"max_context": 1024})
    h.runner.ns_of_rows = lambda rows: 1_000_000 + 100_000 * rows
    request = h.submit(random_ids(1, 10), 900)
    h.step(280)
    aside = sum(h.engine.stats.drafted)
    assert aside < 60
    h.drain()
    h.check_tokens(request)
    assert h.engine.stats.steps < 450
    h.close()
