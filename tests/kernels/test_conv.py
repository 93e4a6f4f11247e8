"""conv: causal convolution over 4 tokens, SiLU, unit-length heads, and the tail of raw rows."""

import numpy as np
import pytest
from launch import Batch, run

EPS = 1e-6
NUM_SLOTS = 5


def conv_args(key_heads, value_heads, dim):
    channels = (2 * key_heads + value_heads) * dim
    tail = 3 * channels
    return (channels, key_heads, dim, EPS, dim**-0.5, 0, NUM_SLOTS * tail, tail, 0, 0, 0)


def conv(args, batch, u, w, tails):
    no_tape = np.zeros(1, np.float32)
    arrays = [u, w, tails, np.empty_like(u), *batch.speculation(), no_tape]
    *_, tails, y, _, _, _ = run("conv", args, [batch.header, *batch.per_sequence(), *arrays])
    return y, tails


def reference(args, batch, u, w, tails):
    channels, key_heads, dim, eps, q_scale, *_ = args
    y, tails = np.zeros(u.shape), tails.copy()
    for s, (kv, slot, bank) in enumerate(
        zip(batch.kv_valid, batch.slots, batch.banks, strict=True)
    ):
        rows = batch.rows_of(s)
        before = tails[bank, slot] if kv else np.zeros((3, channels), np.float32)
        full = np.concatenate([before, u[rows]]).astype(np.float64)
        tails[1 - bank, slot] = full[len(full) - 3 :]
        n = rows.stop - rows.start
        x = sum(full[tap : tap + n] * w[tap] for tap in range(4))
        x = x / (1 + np.exp(-x))
        heads = x[:, : 2 * key_heads * dim].reshape(n, 2, key_heads, dim)
        heads /= np.sqrt((heads**2).sum(-1, keepdims=True) + eps)
        heads[:, 0] *= q_scale
        y[rows] = x
    return y, tails


CASES = [  # key heads, value heads, head dim, lengths, kv_valid, slots
    (2, 2, 128, [1], [0], [0]),
    (2, 4, 128, [1, 1, 1], [7, 0, 130], [4, 0, 2]),
    (1, 3, 128, [2, 37, 3, 1], [0, 64, 5, 1], [3, 1, 0, 4]),
    (3, 5, 48, [4, 2], [2, 1], [1, 3]),
    (16, 16, 128, [128], [128], [2]),
]


@pytest.mark.parametrize(("key_heads", "value_heads", "dim", "lengths", "kv_valid", "slots"), CASES)
def test_conv_equals_numpy(rng, key_heads, value_heads, dim, lengths, kv_valid, slots):
    args = conv_args(key_heads, value_heads, dim)
    batch = Batch(lengths, kv_valid, slots, [i % 2 for i in range(len(slots))])
    u = rng.standard_normal((batch.num_rows, args[0])).astype(np.float32)
    w = rng.standard_normal((4, args[0])).astype(np.float32)
    tails = rng.standard_normal((2, NUM_SLOTS, 3, args[0])).astype(np.float32)
    for s, kv in enumerate(kv_valid):
        if kv == 0:  # not read, whatever memory holds
            tails[batch.banks[s], slots[s]] = np.nan
    y, new_tails = conv(args, batch, u, w, tails)
    expected, expected_tails = reference(args, batch, u, w, tails)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(new_tails, expected_tails)


@pytest.mark.parametrize("pieces", [[1] * 9, [2, 1, 6], [4, 5], [3, 3, 3], [8, 1]])
def test_a_prompt_in_pieces_gives_the_same_bits(rng, pieces):
    args = conv_args(2, 2, 128)
    u = rng.standard_normal((9, args[0])).astype(np.float32)
    w = rng.standard_normal((4, args[0])).astype(np.float32)
    tails = rng.standard_normal((2, NUM_SLOTS, 3, args[0])).astype(np.float32)
    whole, whole_tails = conv(args, Batch([9], [0], [1], [0]), u, w, tails)
    start, bank, outputs = 0, 0, []
    for n in pieces:
        y, tails = conv(args, Batch([n], [start], [1], [bank]), u[start : start + n], w, tails)
        outputs.append(y)
        start, bank = start + n, 1 - bank
    np.testing.assert_array_equal(np.concatenate(outputs), whole)
    np.testing.assert_array_equal(tails[bank, 1], whole_tails[1, 1])
