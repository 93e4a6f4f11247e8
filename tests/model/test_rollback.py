"""Drafts through the whole model and its drafter: what was accepted counts, what was rejected
leaves no trace in GDN state, conv tail, K/V and the drafter's K/V.
"""

import numpy as np
import pytest
from lone_sequence import LoneSequence, run_batch

from mtlqwen.gguf import open_gguf
from mtlqwen.load import demo_drafter_path, demo_model_path

IDS = [(37 * i * i + 11 * i + 5) % 4000 for i in range(128)]  # a whole bundle
WRONG = 7
UNBOUND = -1


@pytest.fixture(scope="module")
def runner(open_module_runner):
    drafter = open_gguf(demo_drafter_path())
    yield open_module_runner(demo_model_path(), drafter=drafter, max_draft_rows=16)
    drafter.close()


@pytest.fixture(scope="module")
def plain(runner):
    """Logits, GDN state and K/V of a run without drafts."""
    sequence = LoneSequence(runner, slot=1)
    logits = sequence.feed(IDS)
    inject(sequence, 0, len(IDS))
    yield logits, sequence.state(), tiles(sequence)
    sequence.close()


def inject(sequence, first, count):
    """Makes the features of the last pass, of positions from `first` on, context of the drafter."""
    runner = sequence.runner
    context = runner.drafting.context
    context.header[0] = count
    context.feature_rows[:count] = np.arange(count)
    context.row_sequence[:count] = sequence.slot
    context.positions[:count] = first + np.arange(count)
    runner.batch.header[:3] = 0
    runner.run()
    context.header[0] = 0


def tiles(sequence):
    return [tile.copy() for tile in sequence.runner.bundle_view(sequence.heap, 0)]


def feed(sequence, count):
    first = sequence.kv_valid
    logits = sequence.feed(IDS[first : first + count])
    inject(sequence, first, count)
    return logits


def verify(sequence, width, num_accepted):
    """One step over the next ids, of which those behind num_accepted are wrong; its logits."""
    batch, first = sequence.runner.batch, sequence.kv_valid
    ids = [*IDS[first : first + num_accepted], *[WRONG] * (width - num_accepted)]
    batch.state[0] = sequence.slot
    run_batch(sequence.runner, [(sequence, ids)])
    batch.state[0], batch.pending[0] = UNBOUND, num_accepted
    logits = sequence.runner.logits[:num_accepted].copy()
    inject(sequence, first, num_accepted)
    sequence.kv_valid = first + num_accepted
    return logits


@pytest.mark.parametrize("num_accepted", range(1, 17))  # the last known token and 0 to 15 drafts
def test_a_run_with_drafts_gives_the_bits_of_a_run_without(runner, plain, num_accepted):
    sequence = LoneSequence(runner, slot=2)
    logits = [feed(sequence, 9), verify(sequence, 16, num_accepted), verify(sequence, 4, 2)]
    logits.append(feed(sequence, 1))  # a plain step replays as well
    runner.batch.pending[0] = 0
    logits.append(feed(sequence, len(IDS) - sequence.kv_valid))
    expected, state, expected_tiles = plain
    np.testing.assert_array_equal(np.concatenate(logits), expected)
    np.testing.assert_array_equal(sequence.state(), state)
    for tile, expected_tile in zip(tiles(sequence), expected_tiles, strict=True):
        np.testing.assert_array_equal(tile, expected_tile)
    sequence.close()
