"""Matrix products: bit-equal to their definition on every instruction set, for any split."""

import numpy as np
import pytest
from launch import INSTRUCTION_SETS, THREADS, devices
from linear_cases import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    INTEGER_TYPES,
    OFFSET_AT,
    STEP_AT,
    SUPER_BLOCK_TYPES,
    Weights,
    float_product,
    product,
    quantize,
    run_linear,
    run_quantize,
)

from mtlqwen.gguf import TensorType

# rows, out_dim, in_dim
SHAPES = [(1, 1, 256), (2, 15, 768), (3, 33, 1024), (9, 16, 512), (37, 17, 768), (128, 48, 256)]
SHAPES += [(1, 17, 18432), (3, 2, 4352), (2, 2, 18688)]  # up to FEW_BLOCKS of avx2, and beyond
BLOCK_SHAPES = [(1, 17, 32), (5, 3, 96), (9, 33, 288)]
FLOAT_SHAPES = [(1, 1, 1), (2, 7, 33), (3, 16, 512), (9, 33, 1030), (67, 24, 600)]

CASES = [(t, *shape) for t in INTEGER_TYPES for shape in SHAPES]
CASES += [(t, *shape) for t in BLOCK_TYPES for shape in BLOCK_SHAPES]


def name(value):
    return value.name if isinstance(value, TensorType) else str(value)


def heavy_tailed(rng, rows, dim):
    return (rng.standard_normal((rows, dim)) * np.exp(rng.standard_normal((rows, dim)))).astype(
        "f4"
    )


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_the_instruction_set_takes_part(isa):
    if (isa, THREADS[0]) not in devices():
        pytest.skip(f"this machine does not run {isa}")
    assert all((isa, threads) in devices() for threads in THREADS)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 32), (7, 300), (128, 1024)])
def test_records_are_those_of_the_definition(rng, rows, dim, scale):
    x = heavy_tailed(rng, rows, dim) * np.float32(scale)
    np.testing.assert_array_equal(run_quantize(x), quantize(x))


def test_groups_far_below_the_block_keep_three_more_bits(rng):
    x = heavy_tailed(rng, 4, 256)
    x[:, 32:64] *= np.float32(1e-3)
    record = run_quantize(x)
    assert np.all(record["shift"][0][:, 1] == 0)
    error = np.abs(x[:, 32:64] - record["q"][0][:, 32:64] * record["step"][0][:, None])
    assert np.all(error <= 0.5001 * record["step"][0][:, None])


def test_tiny_blocks_are_zero_and_broken_ones_are_nan():
    x = np.full((4, 512), 2.0**-101, np.float32)
    x[1:, 256:] = 1.0
    x[2, 300], x[3, 300] = np.inf, np.nan
    steps = run_quantize(x)["step"]
    np.testing.assert_array_equal(steps[0], np.zeros(4))
    np.testing.assert_array_equal(np.isnan(steps[1]), [False, False, True, True])


@pytest.mark.parametrize(("type", "rows", "out_dim", "in_dim"), CASES, ids=name)
def test_integer_products_are_those_of_the_definition(rng, type, rows, out_dim, in_dim):
    weights, x = Weights.random(type, out_dim, in_dim, rng), heavy_tailed(rng, rows, in_dim)
    assert_same_bits(run_linear(weights, x), product(weights, quantize(x)))


@pytest.mark.parametrize("type", INTEGER_TYPES, ids=name)
def test_products_differ_from_exact_ones_by_the_rounding_of_activations(rng, type):
    weights, x = Weights.random(type, 33, 1024, rng), heavy_tailed(rng, 5, 1024)
    records = quantize(x)
    half_steps = np.repeat(np.ldexp(records["step"][..., None], records["shift"] - 1), 32, -1)
    half_steps = half_steps.transpose(1, 0, 2).reshape(x.shape)
    magnitudes = np.abs(weights.values).T
    bound = 1.001 * half_steps @ magnitudes + 1e-6 * np.abs(x) @ magnitudes
    assert np.all(np.abs(run_linear(weights, x) - x @ weights.values.T) <= bound)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("type", INTEGER_TYPES, ids=name)
def test_sums_hold_the_most_extreme_codes_and_activations(type, byte):
    weights = Weights(type, np.full((16, type.row_bytes(512)), byte, np.uint8))
    if type == TensorType.MXFP4:
        weights.blocks[..., 0] = 127
    else:
        weights.set_halves(STEP_AT.get(type, 0), 0.01)
    if type in OFFSET_AT:
        weights.set_halves(OFFSET_AT[type], 0.01)
    alternating = np.where(np.arange(512) % 2, 1, -1)
    x = np.array(
        [np.ones(512), -np.ones(512), alternating, np.sign(weights.values[0] + 1e-9)], "f4"
    )
    assert_same_bits(run_linear(weights, x), product(weights, quantize(x)))


@pytest.mark.parametrize("type", [*INTEGER_TYPES, *FLOAT_TYPES], ids=name)
def test_a_row_does_not_depend_on_the_rows_beside_it(rng, type):
    weights, x = Weights.random(type, 33, 512, rng), heavy_tailed(rng, 128, 512)
    together = run_linear(weights, x)
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 37, 65):
        assert_same_bits(run_linear(weights, x[:count]), together[:count])


@pytest.mark.parametrize("out_dim", [16, 21])
@pytest.mark.parametrize("type", [TensorType.Q4_K, TensorType.Q8_0, TensorType.F32], ids=name)
def test_accumulate_adds_the_product_once(rng, type, out_dim):
    weights, x = Weights.random(type, out_dim, 256, rng), heavy_tailed(rng, 3, 256)
    y = rng.standard_normal((3, out_dim)).astype("f4")
    assert_same_bits(run_linear(weights, x, add_to=y), y + run_linear(weights, x))


@pytest.mark.parametrize("type", [*BLOCK_TYPES[:1], *SUPER_BLOCK_TYPES[:1]], ids=name)
def test_a_broken_activation_spoils_its_row_only(rng, type):
    weights, x = Weights.random(type, 20, 512, rng), heavy_tailed(rng, 3, 512)
    sound = run_linear(weights, x)
    x[1, 400] = np.inf
    y = run_linear(weights, x)
    assert np.all(np.isnan(y[1]))
    assert_same_bits(y[[0, 2]], sound[[0, 2]])


@pytest.mark.parametrize(("rows", "out_dim", "in_dim"), FLOAT_SHAPES)
@pytest.mark.parametrize("type", FLOAT_TYPES, ids=name)
def test_float_products_are_those_of_the_definition(rng, type, rows, out_dim, in_dim):
    weights, x = Weights.random(type, out_dim, in_dim, rng), heavy_tailed(rng, rows, in_dim)
    y = run_linear(weights, x)
    assert_same_bits(y, float_product(weights, x))
    error, size = np.abs(y - x @ weights.values.T), np.abs(x) @ np.abs(weights.values).T
    assert np.all(error <= 1e-6 * size)
