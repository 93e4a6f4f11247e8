"""Kernels that work row by row or value by value: rmsnorm, gather, swiglu, gated_norm, argmax."""

import numpy as np
import pytest
from launch import LOGIT_ROWS, ROWS, header, run

EPS = 1e-6
SHAPES = [(1, 1), (1, 1024), (3, 17), (7, 256), (2, 3584), (128, 1024), (5, 5120)]  # rows, dim


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def floats(rng, *shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def assert_close(actual, expected, relative):
    """The error against float64, relative to each value or, near zero, to the largest value."""
    scale = np.maximum(np.abs(expected), 1e-3 * np.abs(expected).max())
    np.testing.assert_array_less(np.abs(actual - expected), relative * scale + 1e-37)


@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_rmsnorm_divides_by_the_root_mean_square(rng, rows, dim):
    x, w = floats(rng, rows, dim, scale=30), floats(rng, dim)
    *_, y = run("rmsnorm", (dim, ROWS, EPS), [header(rows), x, w, np.empty_like(x)])
    x64 = x.astype(np.float64)
    assert_close(y, x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + EPS) * w, 5e-7)


@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_gather_copies_the_rows_asked_for(rng, rows, dim):
    x = floats(rng, 9, dim)
    indices = rng.integers(0, 9, rows).astype(np.int32)
    y = np.empty((rows, dim), np.float32)
    *_, y = run("gather", (dim, LOGIT_ROWS), [header(9, 1, rows), indices, x, y])
    np.testing.assert_array_equal(y, x[indices])


@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_swiglu_is_silu_times_up(rng, rows, dim):
    gate, up = floats(rng, rows, dim, scale=8), floats(rng, rows, dim)
    *_, y = run("swiglu", (dim, ROWS), [header(rows), gate, up, np.empty_like(up)])
    gate64 = gate.astype(np.float64)
    expected = gate64 * sigmoid(gate64) * up
    np.testing.assert_allclose(y, expected, rtol=3e-7, atol=1e-37)


def test_silu_saturates_without_overflow():
    gate = np.array([[-1e30, -1000, -89, -87.5, -0.0, 0, 87, 89, 1e30]], np.float32)
    *_, y = run("swiglu", (9, ROWS), [header(1), gate, np.ones_like(gate), np.empty_like(gate)])
    np.testing.assert_allclose(y, [[0, 0, 0, 0, 0, 0, 87, 89, 1e30]], rtol=1e-6, atol=1e-35)


@pytest.mark.parametrize(
    ("rows", "heads", "dim"), [(1, 16, 128), (3, 5, 33), (128, 4, 128), (9, 48, 128)]
)
def test_gated_norm_norms_each_head_then_gates(rng, rows, heads, dim):
    o, z, w = (
        floats(rng, rows, heads, dim),
        floats(rng, rows, heads, dim, scale=4),
        floats(rng, dim),
    )
    *_, y = run("gated_norm", (heads, dim, ROWS, EPS), [header(rows), o, z, w, np.empty_like(o)])
    o64, z64 = o.astype(np.float64), z.astype(np.float64)
    expected = o64 / np.sqrt((o64**2).mean(-1, keepdims=True) + EPS) * w * z64 * sigmoid(z64)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-37)


def argmax(logits, num_valid):
    ids = np.empty(len(logits), np.int32)
    *_, ids = run(
        "argmax", (num_valid, logits.shape[1], LOGIT_ROWS), [header(9, 9, len(ids)), logits, ids]
    )
    return ids


@pytest.mark.parametrize(
    ("rows", "num_valid", "stride"), [(1, 1, 1), (2, 15, 40), (3, 8209, 8300), (8, 248077, 248320)]
)
def test_argmax_finds_the_largest_valid_logit(rng, rows, num_valid, stride):
    logits = floats(rng, rows, stride)
    logits[:, num_valid:] = np.inf  # padding never counts
    np.testing.assert_array_equal(argmax(logits, num_valid), logits[:, :num_valid].argmax(-1))


@pytest.mark.parametrize(
    "places", [[0, 5], [4, 20], [7, 8200], [16500, 16499, 3], [20000, 19999, 8192]]
)
def test_argmax_takes_the_lowest_index_among_equals(rng, places):
    logits = np.minimum(floats(rng, 2, 20011), 2.0)
    logits[:, places] = 7.0
    np.testing.assert_array_equal(argmax(logits, 20011), [min(places)] * 2)


def test_argmax_never_chooses_nan(rng):
    logits = floats(rng, 3, 9000)
    logits[0, ::2] = np.nan
    logits[1, :] = np.nan
    logits[1, 8999] = -3.0
    logits[2, :] = -np.inf
    expected = [np.nanargmax(logits[0]), 8999, 0]
    np.testing.assert_array_equal(argmax(logits, 9000), expected)


def test_rows_beyond_the_header_are_left_alone(rng):
    x = floats(rng, 4, 64)
    for kernel, args, inputs in [
        ("rmsnorm", (64, ROWS, EPS), [x, x[0]]),
        ("gather", (64, ROWS), [np.arange(4, dtype=np.int32), x]),
        ("swiglu", (64, ROWS), [x, x]),
        ("gated_norm", (2, 32, ROWS, EPS), [x, x, x[0, :32]]),
    ]:
        *_, y = run(kernel, args, [header(2), *inputs, np.full_like(x, 5)])
        assert (y[2:] == 5).all() and (y[:2] != 5).all(), kernel
