"""Shared beginnings are computed once, and give the tokens of a cold run."""

import numpy as np
import pytest
from engine_harness import Harness, random_ids


def computed(harness):
    return harness.engine.stats.computed_tokens


def test_the_same_prompt_again_restarts_at_the_last_grid_point():
    """Case A19: at least the last multiple of the chunk below the prompt's length."""
    harness = Harness()
    ids = random_ids(1, 200)
    assert harness.run(ids).cached_tokens == 0
    assert harness.run(ids).cached_tokens == 192
    harness.close()


def test_the_third_prompt_with_a_common_beginning_restarts_exactly_there():
    harness = Harness()
    common = random_ids(1, 185)
    cached = [harness.run([*common, s, *random_ids(s, 20)]).cached_tokens for s in range(4)]
    assert cached == [0, 128, 185, 185]


@pytest.mark.parametrize("length", [5, 16, 37, 90])
def test_checkpoints_of_the_caller_are_restart_points_however_short(length):
    harness = Harness()
    ids = random_ids(1, 120)
    harness.run(ids, checkpoints=[length])
    assert harness.run([*ids[: length + 1], 3, 4]).cached_tokens == length


def test_checkpoints_that_save_next_to_nothing_cut_no_pass_but_the_last_does():
    harness = Harness({"pass_tokens": 128})
    harness.run(random_ids(1, 100), 1, checkpoints=[5, 30, 40, 60, 95, 97])
    lengths = [e.num_tokens for e in harness.engine.memory.prefix.entries]
    assert lengths == [30, 60, 64, 95, 97]


def test_a_checkpoint_at_the_end_of_the_prompt_serves_longer_ones_alone():
    harness = Harness()
    ids = random_ids(1, 30)
    harness.run(ids, checkpoints=[30], max_tokens=1)
    assert harness.run(ids, max_tokens=1).cached_tokens == 0
    assert harness.run([*ids, 1], max_tokens=1).cached_tokens == 30


def test_the_next_turn_of_a_chat_restarts_behind_the_answer():
    harness = Harness()
    ids = random_ids(1, 40)
    first = harness.run(ids, 30)
    turn = [*ids, *first.tokens, *random_ids(2, 10)]
    # The last token of the answer was never fed.
    assert harness.run(turn, 30).cached_tokens == 40 + 29


def test_a_next_turn_without_the_thinking_restarts_before_the_answer():
    harness = Harness()
    history, cached = random_ids(1, 45), []
    for turn in range(4):
        prompt = [*history, 7, 8, 9]  # the generation prompt
        client = harness.run(prompt, 20, checkpoints=[len(history)])
        cached.append(len(history) - client.cached_tokens)
        history += client.tokens[10:] + random_ids(turn, 12)
    # What is computed again: the answer without its thinking, and the new message.
    assert cached == [45, 22, 22, 22]


def test_a_partial_bundle_is_copied_so_that_neither_side_sees_the_other():
    harness = Harness()
    ids = random_ids(1, 40)  # ends in the middle of a block
    harness.run(ids, checkpoints=[40], max_tokens=1)
    clients = [harness.submit([*ids, s], 30) for s in range(4)]
    harness.drain()
    for client in clients:
        harness.check_tokens(client)
        assert client.cached_tokens == 40


def test_two_prompts_with_the_same_unseen_beginning_compute_it_once():
    harness = Harness()
    common = random_ids(1, 150)
    a, b = (harness.submit([*common, *random_ids(s, 10)], 5) for s in (2, 3))
    harness.drain()
    assert (a.cached_tokens, b.cached_tokens) == (0, 150)
    assert computed(harness) == 150 + 2 * (10 + 4)
    for client in (a, b):
        harness.check_tokens(client)


def test_a_crowd_with_one_beginning_computes_it_once():
    harness = Harness({"max_slots": 4})
    common = random_ids(1, 150)
    clients = [harness.submit([*common, *random_ids(s, 10)], 5) for s in range(2, 12)]
    harness.drain()
    assert [c.cached_tokens for c in clients] == [0] + [150] * 9
    for client in clients:
        harness.check_tokens(client)


def test_identical_prompts_at_once_are_computed_once_but_for_their_last_token():
    harness = Harness()
    clients = [harness.submit(random_ids(1, 100), 5) for _ in range(3)]
    harness.drain()
    assert [c.cached_tokens for c in clients] == [0, 99, 99]
    for client in clients:
        harness.check_tokens(client)


def test_others_pass_a_request_that_is_held():
    harness = Harness({"pass_tokens": 8})
    common = random_ids(1, 100)
    harness.submit([*common, 1])
    held, other = harness.submit([*common, 2]), harness.submit(random_ids(9, 3))
    harness.step(2)
    assert not held.request.sequence.active and other.tokens
    harness.drain()
    harness.check_tokens(held)


def test_a_held_request_goes_on_alone_when_the_one_it_waits_for_is_cancelled():
    harness = Harness({"pass_tokens": 8})
    common = random_ids(1, 100)
    first, held = harness.submit([*common, 1]), harness.submit([*common, 2])
    harness.step(4)
    harness.engine.cancel(first.request)
    harness.drain()
    assert held.finish_reason == "length" and held.cached_tokens == 0
    harness.check_tokens(held)


def test_a_request_does_not_wait_for_what_is_computed_already():
    harness = Harness({"pass_tokens": 64})
    common = random_ids(1, 150)
    harness.submit([*common, 1, 2, 3], 30)
    harness.step(3)  # beyond the common beginning
    late = harness.submit([*common, 9], 5)
    harness.step()
    assert late.request.sequence.active
    harness.drain()
    assert late.cached_tokens == 128
    assert harness.run([*common, 8]).cached_tokens == 150, "the late one published the divergence"


def test_short_common_beginnings_are_neither_waited_for_nor_published():
    harness = Harness()
    a, b = harness.submit([1, 2, 3, *random_ids(1, 40)]), harness.submit([1, 2, 3, 4, 5])
    harness.step()
    assert a.request.sequence.active and b.request.sequence.active
    harness.drain()
    assert all(e.num_tokens > 5 for e in harness.engine.memory.prefix.entries)


def test_without_a_budget_nothing_is_cached_held_or_cut():
    harness = Harness(snapshots=0)
    ids = random_ids(1, 150)
    a, b = harness.submit(ids, checkpoints=[70]), harness.submit(ids)
    harness.step()
    assert a.request.sequence.active and b.request.sequence.active
    harness.drain()
    assert harness.run(ids).cached_tokens == 0
    for client in (a, b):
        harness.check_tokens(client)
    assert harness.engine.stats.bundles_cached == 0
    harness.close()


def test_a_budget_of_one_snapshot_still_serves_the_latest_prefix():
    harness = Harness(snapshots=1)
    ids = random_ids(1, 100)
    for turn in range(4):
        client = harness.run(ids, 20)
        assert client.cached_tokens == (0 if turn == 0 else len(ids) - 9)
        ids = [*ids, *client.tokens, *random_ids(turn, 8)]


def test_entries_reach_across_every_block_and_chunk_border():
    harness = Harness(snapshots=300, bundles=64)
    ids = random_ids(1, 140)
    for length in range(1, 139, 3):
        harness.run(ids[:length], 1, checkpoints=[length])
        assert harness.run([*ids[: length + 1]], 2).cached_tokens == length


def test_true_sizes_with_random_shared_prefixes():
    """Blocks of 128, chunks of 512, prompts of 1 to 3000 tokens."""
    rng = np.random.default_rng(5)
    harness = Harness(
        {"max_slots": 8, "max_context": 4096, "pass_tokens": 128, "block_tokens": 128},
        bundles=60,
        snapshots=12,
        prefix_chunk_tokens=512,
    )
    families = [random_ids(s, 3000) for s in range(2)]
    for _ in range(24):
        shared, own = int(rng.integers(0, 2500)), int(rng.integers(1, 400))
        ids = families[rng.integers(2)][:shared] + random_ids(int(rng.integers(9)), own)
        harness.submit(ids, int(rng.integers(1, 60)))
        harness.step(int(rng.integers(0, 12)))
    harness.drain()
    for client in harness.clients:
        harness.check_tokens(client)
    stats = harness.engine.stats
    assert stats.prefix_hits > 4 and stats.cached_tokens > 4000
    harness.close()
