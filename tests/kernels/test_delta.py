"""delta and delta_chunk: the gated delta rule, as a recurrence and in chunks of 32 rows."""

import numpy as np
import pytest
from launch import Batch, run

NUM_SLOTS = 4
CHUNK = 32


class Heads:
    """Random inputs of one shape. Keys and queries have unit length, as conv leaves them."""

    def __init__(self, rng, key_heads, value_heads, num_rows, dk=128, dv=128):
        self.key_heads, self.value_heads, self.dk, self.dv = key_heads, value_heads, dk, dv
        qk = rng.standard_normal((num_rows, 2, key_heads, dk))
        qk /= np.linalg.norm(qk, axis=-1, keepdims=True)
        qk[:, 0] *= dk**-0.5
        v = rng.standard_normal((num_rows, value_heads * dv))
        y = np.concatenate([qk.reshape(num_rows, -1), v], axis=1)
        self.y = y.astype(np.float32)
        self.a = (2 * rng.standard_normal((num_rows, value_heads))).astype(np.float32)
        self.b = (2 * rng.standard_normal((num_rows, value_heads))).astype(np.float32)
        self.ssm_a = -np.exp(rng.uniform(-4, 2, value_heads)).astype(np.float32)
        self.dt_bias = rng.standard_normal(value_heads).astype(np.float32)
        states = rng.standard_normal((2, NUM_SLOTS, value_heads, dk, dv))
        self.states = (0.1 * states).astype(np.float32)

    @property
    def args(self):
        slot = self.value_heads * self.dk * self.dv
        shape = (self.key_heads, self.value_heads, self.dk, self.dv)
        return (*shape, NUM_SLOTS * slot, slot, 0, 0, 0, 0, 0)

    def run(self, kernel, batch, states=None, rows=slice(None)):
        """o [rows, value_heads, dv] and the states after."""
        states = self.states if states is None else states
        o = np.empty((batch.num_rows, self.value_heads, self.dv), np.float32)
        arrays = [self.y[rows], self.a[rows], self.b[rows], self.ssm_a, self.dt_bias, states, o]
        arrays += [*batch.speculation(), np.zeros(1, np.float32)]  # an empty tape
        arrays = [batch.header, *batch.per_sequence(), *arrays]
        *_, states, o, _, _, _ = run(kernel, self.args, arrays)
        return o, states

    def reference(self, batch):
        hk, hv, dk, dv = self.key_heads, self.value_heads, self.dk, self.dv
        y = self.y.astype(np.float64)
        q, k, v = np.split(y, [hk * dk, 2 * hk * dk], axis=1)
        q, k = (np.tile(x.reshape(-1, hk, dk), (1, hv // hk, 1)) for x in (q, k))
        v = v.reshape(-1, hv, dv)
        decay = np.exp(self.ssm_a * np.logaddexp(0, (self.a + self.dt_bias).astype(np.float64)))
        beta = 1 / (1 + np.exp(-self.b.astype(np.float64)))
        o, states = np.zeros(v.shape), self.states.astype(np.float64)
        for s, (kv, slot, bank) in enumerate(
            zip(batch.kv_valid, batch.slots, batch.banks, strict=True)
        ):
            state = states[bank, slot] if kv else np.zeros((hv, dk, dv))
            for t in range(batch.starts[s], batch.starts[s + 1]):
                state = state * decay[t][:, None, None]
                d = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
                state = state + k[t][:, :, None] * d[:, None, :]
                o[t] = np.einsum("hk,hkv->hv", q[t], state)
            states[1 - bank, slot] = state
        return o, states


CASES = [  # key heads, value heads, lengths, kv_valid, slots
    (2, 2, [1], [0], [0]),
    (2, 2, [1], [9], [1]),
    (1, 2, [1, 1, 1, 1], [3, 0, 200, 8], [3, 0, 2, 1]),
    (2, 6, [5, 33, 1], [0, 7, 64], [2, 0, 3]),
    (1, 1, [128], [128], [1]),
    (3, 3, [17, 16, 31, 32], [1, 0, 1, 0], [0, 1, 3, 2]),
]


@pytest.mark.parametrize("kernel", ["delta", "delta_chunk"])
@pytest.mark.parametrize(("key_heads", "value_heads", "lengths", "kv_valid", "slots"), CASES)
def test_delta_equals_numpy(rng, kernel, key_heads, value_heads, lengths, kv_valid, slots):
    batch = Batch(lengths, kv_valid, slots, [(i + 1) % 2 for i in range(len(slots))])
    heads = Heads(rng, key_heads, value_heads, batch.num_rows)
    for s, kv in enumerate(kv_valid):
        if kv == 0:  # not read, whatever memory holds
            heads.states[batch.banks[s], slots[s]] = np.nan
    o, states = heads.run(kernel, batch)
    expected, expected_states = heads.reference(batch)
    np.testing.assert_allclose(o, expected, atol=4e-6 * np.abs(expected).max())
    np.testing.assert_allclose(
        states, expected_states, atol=4e-6 * np.nanmax(np.abs(expected_states))
    )


@pytest.mark.parametrize("kernel", ["delta", "delta_chunk"])
def test_other_state_shapes_work(rng, kernel):
    batch = Batch([3, 40], [5, 0], [1, 2], [0, 1])
    heads = Heads(rng, 2, 4, batch.num_rows, dk=64, dv=96)
    o, _ = heads.run(kernel, batch)
    np.testing.assert_allclose(o, heads.reference(batch)[0], atol=2e-6)


def in_pieces(heads, kernel, pieces):
    start, bank, states, outputs = 0, 0, heads.states, []
    for n in pieces:
        batch = Batch([n], [start], [1], [bank])
        o, states = heads.run(kernel, batch, states, slice(start, start + n))
        outputs.append(o)
        start, bank = start + n, 1 - bank
    return np.concatenate(outputs), states[bank, 1]


@pytest.mark.parametrize("pieces", [[1] * 20, [19, 1], [16, 4], [3, 17]])
def test_a_prompt_in_pieces_gives_the_same_bits(rng, pieces):
    heads = Heads(rng, 1, 2, 20)
    whole, whole_state = in_pieces(heads, "delta", [20])
    o, state = in_pieces(heads, "delta", pieces)
    np.testing.assert_array_equal(o, whole)
    np.testing.assert_array_equal(state, whole_state)


def test_whole_chunks_give_the_same_bits(rng):
    heads = Heads(rng, 1, 2, 3 * CHUNK + 5)
    whole, whole_state = in_pieces(heads, "delta_chunk", [3 * CHUNK + 5])
    o, state = in_pieces(heads, "delta_chunk", [CHUNK, 2 * CHUNK, 5])
    np.testing.assert_array_equal(o, whole)
    np.testing.assert_array_equal(state, whole_state)


def test_a_sequence_does_not_depend_on_its_company(rng):
    heads = Heads(rng, 2, 4, 60)
    together, states = heads.run("delta", Batch([20, 37, 3], [4, 0, 9], [2, 0, 3], [0, 1, 1]))
    alone, state = heads.run("delta", Batch([37], [0], [1], [0]), rows=slice(20, 57))
    np.testing.assert_array_equal(together[20:57], alone)
    np.testing.assert_array_equal(states[0, 0], state[1, 1])


def test_gates_are_accurate_over_their_range(rng):
    """With S = 1, k = 0, and with S = 0, k = (1, 0), v = 1, the new state is exp(g) and beta."""
    heads = Heads(rng, 1, 512, 2, dk=2, dv=32)
    heads.states[0, 0], heads.states[0, 1] = 1, 0
    heads.y[:] = 1
    heads.y[0, 2:4], heads.y[1, 2:4] = 0, (1, 0)
    heads.a[:] = np.linspace(-30, 30, 512)
    heads.b[:] = np.linspace(-80, 40, 512)
    _, states = heads.run("delta", Batch([1, 1], [1, 1], [0, 1], [0, 0]))
    g = heads.ssm_a * np.logaddexp(0, (heads.a[0] + heads.dt_bias).astype(np.float64))
    decay, beta = states[1, 0, :, 0, 0], states[1, 1, :, 0, 0]
    seen = g > -80  # below, exp(g) goes to 0
    np.testing.assert_array_less(
        np.abs(decay / np.exp(g) - 1)[seen], (5e-7 + 3e-7 * np.abs(g))[seen]
    )
    np.testing.assert_allclose(decay[~seen], 0, atol=1e-34)
    np.testing.assert_allclose(beta, 1 / (1 + np.exp(-heads.b[0].astype(np.float64))), rtol=3e-7)


def test_a_decay_to_nothing_forgets_the_state(rng):
    heads = Heads(rng, 1, 1, 2)
    heads.ssm_a[:] = -1e30
    o, _ = heads.run("delta", Batch([2], [1], [0], [0]))
    expected, _ = heads.reference(Batch([2], [1], [0], [0]))
    np.testing.assert_allclose(o, expected, atol=1e-6)
