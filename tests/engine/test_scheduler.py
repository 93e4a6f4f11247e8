"""Scheduler: who advances by how many tokens."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mtlqwen._scheduler import Scheduler
from mtlqwen._sequence import Sequence


def sequences(*pending, computed=0):
    """Live sequences with so many tokens to compute each."""
    live = []
    for number, count in enumerate(pending):
        s = Sequence(np.zeros(computed + count, np.int32), number)
        s.start(number)
        s.restore(computed)
        live.append(s)
    return live


def counts(scheduler, live):
    rows = scheduler.schedule(live)
    assert rows == sum(s.count for s in live)
    return [s.count for s in live]


def test_a_lone_prompt_takes_the_whole_pass():
    assert counts(Scheduler(128, 8), sequences(1000)) == [128]


def test_generating_sequences_get_one_row_each():
    assert counts(Scheduler(128, 8), sequences(1, 1, 1, computed=10)) == [1, 1, 1]


def test_prompts_share_what_generation_leaves():
    assert counts(Scheduler(128, 8), sequences(1000, 1, 1, 1000)) == [63, 1, 1, 63]


def test_what_a_short_prompt_leaves_is_handed_on():
    assert counts(Scheduler(128, 8), sequences(1000, 10, 1000)) == [59, 10, 59]


def test_rows_that_do_not_divide_go_to_the_oldest():
    assert counts(Scheduler(16, 8), sequences(99, 99, 99)) == [6, 5, 5]


def test_no_prompt_runs_across_its_checkpoint_and_others_get_the_rest():
    live = sequences(1000, 1000)
    live[0].set_checkpoints((20,))
    assert counts(Scheduler(128, 8), live) == [20, 108]


def test_a_chunk_of_one_row_before_a_checkpoint_is_no_generation():
    live = sequences(50)
    live[0].set_checkpoints((1,))
    assert counts(Scheduler(128, 8), live) == [1]
    assert live[0].stage == "p.p"


def test_every_sequence_advances_even_in_the_narrowest_pass():
    assert counts(Scheduler(4, 4), sequences(500, 500, 1, 500)) == [1, 1, 1, 1]


@pytest.mark.parametrize(("share", "expected"), [(1.0, 127), (0.5, 63), (0.0, 1)])
def test_the_share_bounds_prompts_while_something_generates(share, expected):
    assert counts(Scheduler(128, 8, share), sequences(1, 1000)) == [1, expected]


def test_the_share_does_not_slow_prompts_when_nothing_generates():
    assert counts(Scheduler(128, 8, 0.0), sequences(1000, 1000)) == [64, 64]


def test_a_pass_narrower_than_the_slots_is_refused():
    with pytest.raises(ValueError, match="8 slots and passes of 4 tokens"):
        Scheduler(4, 8)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="prompt_share"):
        Scheduler(128, 8, share)


def test_more_sequences_than_slots_are_refused():
    with pytest.raises(ValueError, match="2 live sequences, 1 slots"):
        Scheduler(16, 1).schedule(sequences(1, 1))


@given(
    pending=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    pass_tokens=st.integers(8, 300),
    share=st.floats(0, 1),
    checkpoint=st.integers(1, 400),
)
def test_division_is_fair_complete_and_within_the_pass(pending, pass_tokens, share, checkpoint):
    live = sequences(*pending)
    live[0].set_checkpoints((checkpoint,))
    given_rows = counts(Scheduler(pass_tokens, 8, share), live)
    limits = [min(p, s.next_checkpoint) for p, s in zip(pending, live, strict=True)]
    assert all(1 <= c <= limit for c, limit in zip(given_rows, limits, strict=True))
    assert sum(given_rows) <= pass_tokens
    hungry = [
        c for c, limit, p in zip(given_rows, limits, pending, strict=True) if p > 1 and c < limit
    ]
    if hungry:
        assert max(hungry) - min(hungry) <= 1
        assert max(given_rows) == max(hungry)
        if share == 1.0 or 1 not in pending:
            assert sum(given_rows) == pass_tokens
