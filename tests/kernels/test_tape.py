"""Rollback: after a draft of which only some rows are accepted, delta and conv go on as from those.

Held against plain runs of the accepted rows alone, bit by bit.
"""

import numpy as np
import pytest
from launch import Batch, run

KEY_HEADS, VALUE_HEADS, DK, DV = 2, 4, 32, 64
CHANNELS = 2 * KEY_HEADS * DK + VALUE_HEADS * DV
NUM_SLOTS, TAPE_ROWS = 4, 16
STATE = VALUE_HEADS * DK * DV
TAPE, STATES = 0, 1  # layouts
TAPE_ROW = KEY_HEADS * DK + VALUE_HEADS * (DV + 1)
LENGTH = 60


class Machine:
    """conv or delta with its memory, and what each slot is at. Memory not written yet is NaN."""

    def __init__(self, rng, layout=TAPE):
        self.layout = layout
        row = TAPE_ROW if layout == TAPE else STATE
        self.states = np.full((2, NUM_SLOTS, VALUE_HEADS, DK, DV), np.nan, np.float32)
        self.tails = np.full((2, NUM_SLOTS, 3, CHANNELS), np.nan, np.float32)
        self.tape = np.full((2, NUM_SLOTS, TAPE_ROWS, row), np.nan, np.float32)
        self.raw_tape = np.full((2, NUM_SLOTS, TAPE_ROWS, CHANNELS), np.nan, np.float32)
        self.bank, self.pending, self.kv_valid = ([0] * NUM_SLOTS for _ in range(3))
        shape = (KEY_HEADS, VALUE_HEADS, DK, DV)
        self.delta_args = (*shape, NUM_SLOTS * STATE, STATE, *strides(row), layout, 0)
        tail = 3 * CHANNELS
        self.conv_args = (CHANNELS, KEY_HEADS, DK, 1e-6, DK**-0.5, 0, NUM_SLOTS * tail, tail)
        self.conv_args += strides(CHANNELS)
        self.w = rng.standard_normal((4, CHANNELS)).astype(np.float32)
        self.u = rng.standard_normal((NUM_SLOTS, LENGTH + TAPE_ROWS, CHANNELS)).astype(np.float32)
        gates = rng.standard_normal((2, NUM_SLOTS, LENGTH + TAPE_ROWS, VALUE_HEADS))
        self.a, self.b = gates.astype(np.float32)
        self.ssm_a = -np.exp(rng.uniform(-4, 1, VALUE_HEADS)).astype(np.float32)
        self.dt_bias = rng.standard_normal(VALUE_HEADS).astype(np.float32)

    def step(self, *work):
        """Runs (slot, number of rows, how many are accepted or None if unbound); o per sequence.

        The rows of slot s are those of its input from kv_valid on; of a bound sequence those that
        are not accepted are wrong ones.
        """
        slots = [slot for slot, _, _ in work]
        lengths = [length for _, length, _ in work]
        batch = Batch(
            lengths,
            [self.kv_valid[s] for s in slots],
            slots,
            [self.bank[s] for s in slots],
            [accepted is not None for _, _, accepted in work],
            [self.pending[s] for s in slots],
        )
        u, a, b = (self._rows(x, work) for x in (self.u, self.a, self.b))
        y, o = np.empty_like(u), np.empty((len(u), VALUE_HEADS, DV), np.float32)
        first = [batch.header, *batch.per_sequence()]
        arrays = [*first, u, self.w, self.tails, y, *batch.speculation(), self.raw_tape]
        *_, self.tails, y, _, _, self.raw_tape = run("conv", self.conv_args, arrays)
        arrays = [*first, y, a, b, self.ssm_a, self.dt_bias, self.states, o]
        arrays += [*batch.speculation(), self.tape]
        *_, self.states, o, _, _, self.tape = run("delta", self.delta_args, arrays)
        for slot, length, accepted in work:
            self.bank[slot] ^= 1
            self.pending[slot] = accepted or 0
            self.kv_valid[slot] += length if accepted is None else accepted
        return [o[batch.rows_of(s)] for s in range(len(work))]

    def _rows(self, values, work):
        rows = []
        for slot, length, accepted in work:
            first = self.kv_valid[slot]
            piece = values[slot, first : first + length].copy()
            if accepted is not None:
                piece[accepted:] = values[slot, LENGTH : LENGTH + length - accepted]
            rows.append(piece)
        return np.concatenate(rows)

    def state(self, slot):
        """State and tail, with nothing pending."""
        self.step((slot, 0, None))
        return self.states[self.bank[slot], slot], self.tails[self.bank[slot], slot]


def strides(row):
    return NUM_SLOTS * TAPE_ROWS * row, TAPE_ROWS * row, row


def plain(seed, slot, length):
    """o, state and tail of a slot's first rows, run without drafts."""
    machine = Machine(np.random.default_rng(seed))
    (o,) = machine.step((slot, length, None))
    assert np.isfinite(o).all()
    return o, *machine.state(slot)


@pytest.mark.parametrize("layout", [TAPE, STATES], ids=["tape", "states"])
@pytest.mark.parametrize("accepted", range(1, 17))
def test_rows_after_a_rejection_at_any_position_leave_no_trace(layout, accepted):
    machine = Machine(np.random.default_rng(4), layout)
    (start,) = machine.step((1, 7, None))
    (draft,) = machine.step((1, 16, accepted))
    (again,) = machine.step((1, 5, 3))
    (last,) = machine.step((1, 4, None))
    expected, state, tail = plain(4, 1, 7 + accepted + 3 + 4)
    o = np.concatenate([start, draft[:accepted], again[:3], last])
    np.testing.assert_array_equal(o, expected)
    found_state, found_tail = machine.state(1)
    np.testing.assert_array_equal(found_state, state)
    np.testing.assert_array_equal(found_tail, tail)


@pytest.mark.parametrize("layout", [TAPE, STATES], ids=["tape", "states"])
@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_a_flush_settles_what_is_pending(layout, accepted):
    machine = Machine(np.random.default_rng(5), layout)
    machine.step((2, 2, None))
    machine.step((2, 4, accepted))
    state, tail = machine.state(2)
    _, expected_state, expected_tail = plain(5, 2, 2 + accepted)
    np.testing.assert_array_equal(state, expected_state)
    np.testing.assert_array_equal(tail, expected_tail)
    assert machine.pending[2] == 0


@pytest.mark.parametrize("layout", [TAPE, STATES], ids=["tape", "states"])
def test_bound_unbound_prompt_and_flush_in_one_batch(layout):
    machine = Machine(np.random.default_rng(6), layout)
    outputs = [[] for _ in range(NUM_SLOTS)]

    def step(*work):
        for (slot, length, accepted), o in zip(work, machine.step(*work), strict=True):
            outputs[slot].append(o[: length if accepted is None else accepted])

    step((3, 5, None), (0, 1, None))
    step((0, 4, 2), (3, 6, 6), (1, 17, None))
    step((2, 3, None), (1, 3, 1), (0, 1, None), (3, 0, None))
    step((3, 1, None), (0, 16, 1), (1, 0, None), (2, 2, 1))
    step((1, 8, 5), (2, 9, None), (3, 2, 1), (0, 3, 3))
    for slot in range(NUM_SLOTS):
        expected, state, tail = plain(6, slot, machine.kv_valid[slot])
        np.testing.assert_array_equal(np.concatenate(outputs[slot]), expected)
        found_state, found_tail = machine.state(slot)
        np.testing.assert_array_equal(found_state, state)
        np.testing.assert_array_equal(found_tail, tail)


@pytest.mark.parametrize("layout", [TAPE, STATES], ids=["tape", "states"])
def test_a_draft_may_be_the_first_step(layout):
    machine = Machine(np.random.default_rng(7), layout)
    (draft,) = machine.step((0, 8, 2))
    expected, state, tail = plain(7, 0, 2)
    np.testing.assert_array_equal(draft[:2], expected)
    found_state, found_tail = machine.state(0)
    np.testing.assert_array_equal(found_state, state)
    np.testing.assert_array_equal(found_tail, tail)


def test_nothing_accepted_leaves_the_state_from_before():
    """A tape may be dropped whole: its step wrote the state that it began with."""
    machine = Machine(np.random.default_rng(8))
    machine.step((0, 6, None))
    machine.step((0, 3, 0))
    state, tail = machine.state(0)
    _, expected_state, expected_tail = plain(8, 0, 6)
    np.testing.assert_array_equal(state, expected_state)
    np.testing.assert_array_equal(tail, expected_tail)


def test_chunks_replay_too():
    machines = [Machine(np.random.default_rng(9)) for _ in range(2)]
    for machine in machines:
        machine.step((1, 4, None))
        machine.step((1, 6, 5))
    states = [machine.states.copy() for machine in machines]
    for kernel, machine in zip(("delta", "delta_chunk"), machines, strict=True):
        batch = Batch([0], [9], [1], [machine.bank[1]], [False], [5])
        nothing = np.zeros((1, CHANNELS), np.float32)
        gates = np.zeros((1, VALUE_HEADS), np.float32)
        arrays = [batch.header, *batch.per_sequence(), nothing, gates, gates, machine.ssm_a]
        arrays += [machine.dt_bias, machine.states, nothing, *batch.speculation(), machine.tape]
        *_, machine.states, _, _, _, _ = run(kernel, machine.delta_args, arrays)
    np.testing.assert_array_equal(machines[0].states, machines[1].states)
    assert not np.array_equal(machines[0].states, states[0], equal_nan=True)
