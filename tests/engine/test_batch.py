"""Batch: what the kernels will read."""

import numpy as np
import pytest
from fake_runner import FakeRunner

from mtlqwen._batch import Batch
from mtlqwen._scheduler import Scheduler
from mtlqwen._sequence import NO_ROW, UNBOUND, Sequence


def live_sequence(number, slot, ids, computed):
    s = Sequence(np.array(ids, np.int32), number)
    s.start(slot)
    s.restore(computed)
    return s


def test_rows_of_all_sequences_are_packed_in_order():
    runner = FakeRunner(max_slots=4, pass_tokens=8)
    live = [
        live_sequence(0, 3, range(10, 16), 2),  # 4 pending, the share is 3
        live_sequence(1, 0, range(20, 30), 9),  # generates
        live_sequence(2, 1, range(30, 34), 0),  # 4 pending, the share is 4
    ]
    Scheduler(8, 4).schedule(live)
    assert [s.count for s in live] == [4, 1, 3]
    batch = Batch(runner.batch)
    assert batch.pack(live) == batch.num_rows == 8
    b = runner.batch
    assert b.header[:3].tolist() == [8, 3, 2]
    assert b.input_ids.tolist() == [12, 13, 14, 15, 29, 30, 31, 32]
    assert b.row_sequence.tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert b.positions.tolist() == [2, 3, 4, 5, 9, 0, 1, 2]
    assert b.query_start_loc[:4].tolist() == [0, 4, 5, 8]
    assert b.sequence_slots[:3].tolist() == [3, 0, 1]
    assert b.batched_kv_valid[:3].tolist() == [2, 9, 0]
    assert b.bank[:3].tolist() == [0, 0, 0]
    assert b.state[:3].tolist() == [UNBOUND] * 3


def test_only_the_last_row_of_a_finished_prompt_and_generated_rows_get_logits():
    runner = FakeRunner(max_slots=4, pass_tokens=16)
    live = [
        live_sequence(0, 0, range(100), 0),
        live_sequence(1, 1, range(5), 4),
        live_sequence(2, 2, range(4), 0),
    ]
    Scheduler(16, 4).schedule(live)
    assert [s.count for s in live] == [11, 1, 4]
    batch = Batch(runner.batch)
    batch.pack(live)
    assert runner.batch.logit_rows[: batch.num_logit_rows].tolist() == [11, 15]
    assert [s.logit_row for s in live] == [NO_ROW, 0, 1]


def test_advancing_flips_the_bank_that_the_next_pass_reads():
    runner = FakeRunner(max_slots=2, pass_tokens=4)
    live = [live_sequence(0, 0, range(10), 0)]
    scheduler, batch = Scheduler(4, 2), Batch(runner.batch)
    for step in range(2):
        scheduler.schedule(live)
        batch.pack(live)
        assert runner.batch.bank[0] == step % 2
        assert runner.batch.batched_kv_valid[0] == 4 * step
        live[0].advance()
    assert (live[0].kv_valid, live[0].busy) == (8, False)


def test_what_does_not_fit_the_arrays_is_refused_before_anything_is_written():
    runner = FakeRunner(max_slots=2, pass_tokens=4)
    live = [live_sequence(0, 0, range(10), 0)]
    Scheduler(8, 2).schedule(live)
    with pytest.raises(ValueError, match="8 rows"):
        Batch(runner.batch).pack(live)
    assert (runner.batch.input_ids == 12345).all()
    with pytest.raises(ValueError, match="3 sequences, room for 2"):
        Batch(runner.batch).pack(live * 3)


def test_a_block_of_drafts_comes_with_the_most_rare_tokens_among_the_recent_of_a_sequence():
    """Rare are tokens from 50 on, recent the last 10."""
    runner = FakeRunner(max_slots=4, pass_tokens=16, drafter=True)
    texts = [[60, *range(40, 54)], [70] * 5 + [1] * 10, [80] * 12, [90, 1]]
    live = [live_sequence(i, i, ids, len(ids) - 1) for i, ids in enumerate(texts)]
    batch = Batch(runner.batch, runner.drafting)
    for drafting, num_rare in (([0], 4), ([1], 0), ([3], 1), ([0, 1, 3], 4), ([], 0)):
        for i in drafting:
            live[i].draft(np.array([99], np.int32), 3)  # what stands for drafts is no text
        Scheduler(16, 4).schedule(live)
        batch.pack(live)
        assert runner.drafting.drafts.header[1] == len(drafting)
        assert runner.drafting.drafts.header[3] == num_rare
        for s in live:
            s.drop_drafts()


def test_a_drafter_sees_its_whole_block_however_few_of_its_rows_are_drafts():
    runner = FakeRunner(max_slots=4, pass_tokens=16, drafter=True)
    live = [
        live_sequence(0, 3, range(10, 16), 5),
        live_sequence(1, 0, range(20, 30), 9),
        live_sequence(2, 1, range(30, 34), 3),
    ]
    live[0].draft(np.array([99, 99], np.int32), 5)
    live[2].draft(np.array([98], np.int32), 3)
    Scheduler(16, 4).schedule(live)
    batch, d = Batch(runner.batch, runner.drafting), runner.drafting.drafts
    assert batch.pack(live) == 6
    assert d.header[:3].tolist() == [8, 2, 3]
    assert d.input_ids[:8].tolist() == [15, 99, 99, 99, 99, 33, 98, 98]
    assert d.positions[:8].tolist() == [5, 6, 7, 8, 9, 3, 4, 5]
    assert d.row_sequence[:8].tolist() == [0] * 5 + [1] * 3
    assert d.query_start_loc[:3].tolist() == [0, 5, 8]
    assert d.sequence_slots[:2].tolist() == [3, 1] and d.batched_kv_valid[:2].tolist() == [5, 3]
    assert d.logit_rows[:3].tolist() == [1, 2, 6]
    assert d.target_rows[:3].tolist() == [1, 2, 5]


def test_blocks_beyond_the_arrays_are_refused():
    runner = FakeRunner(max_slots=1, pass_tokens=16, drafter=True)
    live = [live_sequence(0, 0, range(10), 9)]
    live[0].draft(np.array([99], np.int32), 17)
    Scheduler(16, 1).schedule(live)
    with pytest.raises(ValueError, match="17 rows of blocks, room for 16"):
        Batch(runner.batch, runner.drafting).pack(live)
