"""Drafts through the whole model on the metal device: rejected rows leave no trace in its state."""

from __future__ import annotations

import numpy as np

from mtlqwen.device import Device
from mtlqwen.load import demo_model_path
from mtlqwen.runner import UNBOUND, Runner
from tests.model.lone_sequence import LoneSequence, run_batch

IDS = (37, 11, 5, 3001, 820)
WRONG = 7
NUM_KNOWN = 3


def run_plainly(runner: Runner, accepted: tuple[int, int]) -> list[np.ndarray]:
    """GDN states of two sequences after the known ids and as many more as are accepted."""
    sequences = [LoneSequence(runner, slot) for slot in range(2)]
    for sequence, count in zip(sequences, accepted, strict=True):
        sequence.feed(IDS[: NUM_KNOWN + count], [NUM_KNOWN, *[1] * count])
    return states_of(sequences)


def run_with_drafts(runner: Runner, accepted: tuple[int, int]) -> list[np.ndarray]:
    """The same, by one pass of two rows for each sequence and one that replays both tapes."""
    sequences = [LoneSequence(runner, slot) for slot in range(2)]
    for sequence in sequences:
        sequence.feed(IDS[:NUM_KNOWN])
    batch = runner.batch
    batch.state[:2] = 0, 1
    rows = [
        (sequence, [*IDS[NUM_KNOWN : NUM_KNOWN + count], *[WRONG] * (2 - count)])
        for sequence, count in zip(sequences, accepted, strict=True)
    ]
    run_batch(runner, rows)
    batch.state[:2], batch.pending[:2] = UNBOUND, accepted
    run_batch(runner, [(sequence, []) for sequence in sequences])
    batch.pending[:2] = 0
    return states_of(sequences)


def states_of(sequences: list[LoneSequence]) -> list[np.ndarray]:
    states = [sequence.state() for sequence in sequences]
    for sequence in sequences:
        sequence.close()
    return states


def test_replayed_drafts_leave_the_state_of_plain_decoding(fake):
    """Bit by bit, as no pass has more than four rows; one sequence accepts a row, one both."""
    settings = {"max_slots": 2, "max_context": 128, "pass_tokens": 4, "max_draft_rows": 2}
    with Device.open("metal") as device:
        runner = Runner(device, demo_model_path(), **settings)
        for accepted in ((1, 2), (2, 1)):
            wanted = run_plainly(runner, accepted)
            for state, expected in zip(run_with_drafts(runner, accepted), wanted, strict=True):
                np.testing.assert_array_equal(state, expected)
        runner.close()
