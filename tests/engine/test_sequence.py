"""Sequence: tokens, progress, checkpoints."""

import numpy as np
import pytest

from mtlqwen._sequence import NO_CHECKPOINT, NO_SLOT, UNBOUND, Sequence


def sequence(ids, number=0):
    return Sequence(np.array(ids, np.int32), number)


def test_a_new_sequence_waits_with_its_tokens():
    s = sequence([5, 6, 7], 4)
    assert (s.number, s.slot, s.stage, s.state) == (4, NO_SLOT, "waiting", UNBOUND)
    assert (s.num_tokens, s.pending, s.kv_valid, s.num_blocks) == (3, 3, 0, 0)
    assert not s.active and not s.busy
    assert s.tokens().tolist() == [5, 6, 7]


def test_tokens_survive_any_number_of_appends():
    s = sequence([1])
    for token in range(1000):
        s.append(token)
    assert s.tokens().tolist() == [1, *range(1000)]
    assert s.tokens(3).tolist() == [1, 0, 1]
    assert s.tokens(0).tolist() == []


def test_tokens_are_a_copy():
    s = sequence([1, 2])
    s.tokens()[:] = 9
    assert s.tokens().tolist() == [1, 2]


def test_a_sequence_generates_once_one_token_is_pending():
    s = sequence([1, 2, 3])
    s.start(2)
    assert (s.slot, s.active, s.stage) == (2, True, "p.p")
    s.restore(2)
    assert s.stage == "t.g"


def test_restoring_everything_is_refused():
    with pytest.raises(ValueError, match="3 of 3 tokens"):
        sequence([1, 2, 3]).restore(3)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        sequence([])


def test_stopping_keeps_tokens_and_nothing_else():
    s = sequence([1, 2, 3])
    s.start(1)
    s.bind(9)
    s.restore(2)
    s.set_checkpoints((3,))
    s.stop()
    assert s.tokens().tolist() == [1, 2, 3]
    assert (s.slot, s.kv_valid, s.bank, s.bindings) == (NO_SLOT, 0, 0, [])
    assert s.next_checkpoint == NO_CHECKPOINT


def test_bindings_are_in_block_order():
    s = sequence([1])
    assert s.last_bundle == -1
    for bundle in (7, 3, 5):
        s.bind(bundle)
    assert (s.bindings, s.last_bundle, s.num_blocks) == ([7, 3, 5], 5, 3)


def test_checkpoints_come_in_order_and_not_behind_what_is_computed():
    s = sequence(range(100))
    s.restore(30)
    s.set_checkpoints((80, 10, 30, 50, 50))
    assert s.next_checkpoint == 50 and not s.at_checkpoint
    s.pass_checkpoint()
    assert s.next_checkpoint == 80
    s.add_checkpoint(60)
    assert s.next_checkpoint == 60
    s.pass_checkpoint()
    s.pass_checkpoint()
    assert s.next_checkpoint == NO_CHECKPOINT


def test_shared_tokens_is_the_longest_common_prefix():
    assert sequence([1, 2, 3]).shared_tokens(sequence([1, 2, 4, 5])) == 2
    assert sequence([1, 2]).shared_tokens(sequence([1, 2, 3])) == 2
    assert sequence([1]).shared_tokens(sequence([2])) == 0


def test_blocks_are_bound_for_all_rows_that_a_drafter_runs():
    s = Sequence(np.arange(15, dtype=np.int32), 0)
    s.start(0)
    s.bind(7)
    s.restore(14)
    s.draft(np.array([1], np.int32))
    assert s.blocks_missing(16) == 0
    s.drop_drafts()
    s.draft(np.array([1], np.int32), 16)  # positions 14 to 29
    assert s.blocks_missing(16) == 1
    s.drop_drafts()
    assert s.blocks_missing(16) == 0
    with pytest.raises(ValueError, match="2 drafts of a block of 2 rows"):
        s.draft(np.array([1, 1], np.int32), 2)
