"""The same numbers however a prompt is cut, packed, split over threads or vectorised."""

import numpy as np
import pytest
from conftest import DATA
from lone_sequence import LoneSequence, run_batch

IDS = [(37 * i * i + 11 * i + 5) % 4000 for i in range(300)]


@pytest.fixture
def demo():
    return DATA.parents[1] / "mtlqwen/data/demo-q8_0.gguf"


def logits_and_state(runner, pieces=None, slot=0):
    sequence = LoneSequence(runner, slot)
    logits, state = sequence.feed(IDS, pieces), sequence.state()
    sequence.close()
    return logits, state


@pytest.fixture
def whole(open_runner, demo):
    return logits_and_state(open_runner(demo, num_threads=1))


@pytest.mark.parametrize(
    "pieces",
    [[1] * 300, [128, 128, 44], [1, 2, 3, 5, 117, 128, 44], [100, 100, 100], [127, 1, 1, 127, 44]],
    ids=lambda pieces: f"{len(pieces)} pieces",
)
def test_a_prompt_in_pieces_gives_the_same_bits(open_runner, demo, whole, pieces):
    logits, state = logits_and_state(open_runner(demo), pieces)
    np.testing.assert_array_equal(logits, whole[0])
    np.testing.assert_array_equal(state, whole[1])


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(open_runner, demo, whole, num_threads):
    logits, state = logits_and_state(open_runner(demo, num_threads=num_threads))
    np.testing.assert_array_equal(logits, whole[0])
    np.testing.assert_array_equal(state, whole[1])


def test_portable_c_gives_the_same_bits(open_runner, demo, whole):
    logits, state = logits_and_state(open_runner(demo, isa="portable"))
    np.testing.assert_array_equal(logits, whole[0])
    np.testing.assert_array_equal(state, whole[1])


def test_any_slot_and_a_used_slot_give_the_same_bits(open_runner, demo, whole):
    runner = open_runner(demo)
    for slot in (3, 3, 1):
        logits, state = logits_and_state(runner, slot=slot)
        np.testing.assert_array_equal(logits, whole[0])
        np.testing.assert_array_equal(state, whole[1])


def test_neighbours_in_the_batch_change_nothing(open_runner, demo, whole):
    runner = open_runner(demo)
    subject, *others = (LoneSequence(runner, slot) for slot in (2, 0, 3, 1))
    rows = []
    for start in range(0, 300, 30):
        piece = IDS[start : start + 30]
        work = [(subject, piece)]
        for index, other in enumerate(others):
            ids = IDS[: 1 + (start + 7 * index) % 23]
            work.insert(index % len(work), (other, ids))
        run_batch(runner, work)
        first = sum(len(ids) for sequence, ids in work[: work.index((subject, piece))])
        rows.append(runner.logits[first : first + len(piece)].copy())
    np.testing.assert_array_equal(np.concatenate(rows), whole[0])
    np.testing.assert_array_equal(subject.state(), whole[1])
    for sequence in (subject, *others):
        sequence.close()
