"""Embedding rows: exactly the dequantised rows of the table."""

import numpy as np
import pytest
from launch import header, run
from linear_cases import Weights

from mtlqwen.gguf import TensorType
from mtlqwen.quants import dequantize


def run_embed(table: Weights, ids: list[int], dim: int) -> np.ndarray:
    x = np.zeros((len(ids), dim), np.float32)
    num_rows, row_bytes = table.raw.shape
    arrays = [header(len(ids)), np.array(ids, np.int32), table.raw, x]
    return run(f"embed_{table.type.name.lower()}", (dim, num_rows, row_bytes), arrays)[3]


@pytest.mark.parametrize("dim", [256, 1024])
@pytest.mark.parametrize("type", TensorType, ids=lambda type: type.name)
def test_rows_are_the_dequantised_rows_of_the_table(rng, type, dim):
    table = Weights.random(type, 9, dim, rng)
    x = run_embed(table, [3, 0, 8, 8], dim)
    np.testing.assert_array_equal(x, dequantize(table.raw, type)[[3, 0, 8, 8]])


@pytest.mark.parametrize("type", [TensorType.Q8_0, TensorType.MXFP4, TensorType.F32], ids=str)
def test_rows_need_not_be_whole_super_blocks(rng, type):
    table = Weights.random(type, 5, 288, rng)
    np.testing.assert_array_equal(run_embed(table, [4], 288), dequantize(table.raw[4:], type))


def test_ids_outside_the_table_give_nan(rng):
    table = Weights.random(TensorType.Q4_K, 4, 512, rng)
    x = run_embed(table, [-1, 4, 3], 512)
    assert np.all(np.isnan(x[:2]))
    np.testing.assert_array_equal(x[2:], dequantize(table.raw[3:], TensorType.Q4_K))
