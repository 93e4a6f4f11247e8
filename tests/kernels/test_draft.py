"""What only drafters need: taps of the hidden states, ids from one batch to another, and DFlash2's
block-local convolution and path selector.
"""

import numpy as np
import pytest
from launch import FEATURE_ROW, LOGIT_ROWS, ROWS, header, run

CHUNK, TOP = 8192, 16  # of select_path's workspace


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_taps_lie_side_by_side_from_the_row_that_the_header_names(rng):
    features = np.full((6, 3 * 48), 5, np.float32)
    layers = [floats(rng, 4, 48) for _ in range(3)]
    batch = header(3)
    batch[FEATURE_ROW] = 2
    for tap in (2, 0, 1):
        args = (48, ROWS, 3 * 48, tap * 48)
        *_, features = run("tap", args, [batch, layers[tap], features])
    np.testing.assert_array_equal(features[2:5], np.concatenate(layers, axis=1)[:3])
    assert (features[[0, 1, 5]] == 5).all()


def test_drafted_ids_become_rows_of_the_batch_that_verifies_them():
    ids, rows = np.array([70, 71, 90, 99], np.int32), np.array([1, 2, 5, 0], np.int32)
    input_ids = np.arange(8, dtype=np.int32)
    *_, input_ids = run("scatter_ids", (LOGIT_ROWS,), [header(5, 2, 3), ids, rows, input_ids])
    np.testing.assert_array_equal(input_ids, [0, 70, 71, 3, 4, 90, 6, 7])


def convolve(x, dyn, base, group):
    """One sequence: row t takes itself and row t - 1, zero before the first."""
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    taps = base + np.repeat(dyn, group, axis=-1)
    return taps[:, 0] * x + taps[:, 1] * before


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("lengths", [[1], [8], [3, 1, 16, 5]])
@pytest.mark.parametrize("group", [16, 32])
def test_block_conv_equals_numpy(rng, group, lengths, side):
    rows, dim = sum(lengths), 192
    x, base = floats(rng, rows, dim), floats(rng, 2, 2, dim)
    dyn = floats(rng, rows, 2, 2, dim // group)
    residual = floats(rng, rows, dim)
    row_sequence = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    arrays = [header(rows, len(lengths)), row_sequence, x, dyn, base]
    pieces = np.split(np.arange(rows), np.cumsum(lengths)[:-1])
    expected = np.concatenate(
        [convolve(x[p].astype(float), dyn[p, side], base[side], group) for p in pieces]
    )
    for accumulate in (0, 1):
        args = (dim, group, side, accumulate)
        *_, y = run("block_conv", args, [*arrays, residual])
        np.testing.assert_allclose(y, expected + accumulate * residual, atol=3e-6)


def encode(values, kind):
    """A codebook's bytes, and the values that they stand for."""
    if kind == "bf16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    stored = values.astype(np.float16 if kind == "f16" else np.float32)
    return stored, stored.astype(np.float32)


def greedy_path(anchor, logits, h, predecessor, successor):
    path = []
    for row, state in zip(logits.astype(np.float64), h, strict=True):
        row = np.where(np.isnan(row), -np.inf, row)
        top = np.sort(np.argsort(-row, kind="stable")[:TOP])
        scores = row[top] + successor[top] @ (predecessor[anchor] * state).astype(np.float64)
        anchor = int(top[scores.argmax()])
        path.append(anchor)
    return path


def select_path(lengths, input_ids, logits, num_valid, h, predecessor, successor, kind="f32"):
    """ids: of each sequence the first row is the anchor, the others have logits."""
    rows, starts = sum(lengths), np.cumsum([0, *lengths[:-1]])
    logit_rows = np.setdiff1d(np.arange(rows), starts).astype(np.int32)
    ids = np.full(len(logit_rows) + 1, -7, np.int32)
    num_chunks = -(-num_valid // CHUNK)
    workspace = np.zeros((len(logit_rows), num_chunks, TOP), np.int32)
    arrays = [header(rows, len(lengths), len(logit_rows)), input_ids, logit_rows, logits, h]
    arrays += [predecessor, successor, ids, workspace]
    args = (num_valid, logits.shape[1], h.shape[1])
    ids = run(f"select_path_{kind}", args, arrays)[7]
    assert ids[-1] == -7
    return ids[:-1]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("lengths", "num_valid"), [([2], 20), ([8], 9000), ([4, 1, 16, 2], 17001), ([3], 10)]
)
def test_the_path_of_each_sequence_equals_numpy(rng, lengths, num_valid, kind):
    num_drafts, stride, rank = sum(lengths) - len(lengths), num_valid + 9, 64
    logits = 2 * floats(rng, num_drafts, stride)
    logits[:, num_valid:] = 99  # no tokens
    h = floats(rng, num_drafts, rank)
    stored, books = zip(
        *(encode(0.3 * floats(rng, stride, rank), kind) for _ in range(2)), strict=True
    )
    input_ids = rng.integers(0, num_valid, sum(lengths)).astype(np.int32)
    ids = select_path(lengths, input_ids, logits, num_valid, h, *stored, kind)
    drafts = np.split(np.arange(num_drafts), np.cumsum([n - 1 for n in lengths])[:-1])
    anchors = input_ids[np.cumsum([0, *lengths[:-1]])]
    expected = [
        greedy_path(anchor, logits[rows, :num_valid], h[rows], *books)
        for anchor, rows in zip(anchors, drafts, strict=True)
    ]
    np.testing.assert_array_equal(ids, np.concatenate(expected))
    assert (ids != logits[:, :num_valid].argmax(-1)).any() or num_drafts < 4  # the books matter


def test_equal_and_missing_candidates_go_by_the_lowest_id(rng):
    """Of twenty equal logits the first sixteen are candidates; a row of NaN gives token 0."""
    logits = np.full((2, 9000), -1, np.float32)
    logits[0, 8180:8200] = 5
    logits[1] = np.nan
    predecessor, successor = np.ones((9000, 16), np.float32), np.zeros((9000, 16), np.float32)
    successor[8196:8200] = 1  # outside the sixteen
    h = np.ones((2, 16), np.float32)
    anchor = np.array([3, 0, 0], np.int32)
    ids = select_path([3], anchor, logits, 9000, h, predecessor, successor)
    np.testing.assert_array_equal(ids, [8180, 0])
    successor[8195] = 1
    ids = select_path([3], anchor, logits, 9000, h, predecessor, successor)
    np.testing.assert_array_equal(ids, [8195, 0])
