"""Drafts through the whole model: what was accepted counts, what was rejected leaves no trace."""

import numpy as np
import pytest
from conftest import DATA
from lone_sequence import LoneSequence, run_batch

IDS = [(37 * i * i + 11 * i + 5) % 4000 for i in range(60)]
WRONG = 7
UNBOUND = -1


@pytest.fixture
def runner(open_runner):
    return open_runner(DATA.parents[1] / "mtlqwen/data/demo-q8_0.gguf", max_draft_rows=16)


def verify(sequence, width, num_accepted):
    """One step over the next ids, of which those behind num_accepted are wrong; its logits."""
    batch, first = sequence.runner.batch, sequence.kv_valid
    ids = [*IDS[first : first + num_accepted], *[WRONG] * (width - num_accepted)]
    batch.state[0] = sequence.slot
    run_batch(sequence.runner, [(sequence, ids)])
    batch.state[0], batch.pending[0] = UNBOUND, num_accepted
    sequence.kv_valid = first + num_accepted
    return sequence.runner.logits[:num_accepted].copy()


def plain_run(runner):
    sequence = LoneSequence(runner, slot=1)
    logits, state = sequence.feed(IDS), sequence.state()
    sequence.close()
    return logits, state


@pytest.mark.parametrize("num_accepted", [1, 2, 5, 15, 16])
def test_a_run_with_drafts_gives_the_bits_of_a_run_without(runner, num_accepted):
    expected, state = plain_run(runner)
    sequence = LoneSequence(runner, slot=2)
    logits = [sequence.feed(IDS[:9])]
    logits.append(verify(sequence, 16, num_accepted))
    logits.append(verify(sequence, 4, 2))
    start = sequence.kv_valid
    logits.append(sequence.feed(IDS[start : start + 1]))  # a plain step replays as well
    runner.batch.pending[0] = 0
    logits.append(sequence.feed(IDS[start + 1 :]))
    np.testing.assert_array_equal(np.concatenate(logits), expected)
    np.testing.assert_array_equal(sequence.state(), state)
    sequence.close()
