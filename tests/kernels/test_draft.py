"""What only drafters need: taps of the hidden states, ids from one batch to another."""

import numpy as np
from launch import LOGIT_ROWS, ROWS, header, run


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_taps_lie_side_by_side(rng):
    features = np.full((4, 3 * 48), 5, np.float32)
    layers = [floats(rng, 4, 48) for _ in range(3)]
    for tap in (2, 0, 1):
        args = (48, ROWS, 3 * 48, tap * 48)
        *_, features = run("tap", args, [header(3), layers[tap], features])
    np.testing.assert_array_equal(features[:3], np.concatenate(layers, axis=1)[:3])
    assert (features[3] == 5).all()


def test_drafted_ids_become_rows_of_the_batch_that_verifies_them():
    ids, rows = np.array([70, 71, 90, 99], np.int32), np.array([1, 2, 5, 0], np.int32)
    input_ids = np.arange(8, dtype=np.int32)
    *_, input_ids = run("scatter_ids", (LOGIT_ROWS,), [header(5, 2, 3), ids, rows, input_ids])
    np.testing.assert_array_equal(input_ids, [0, 70, 71, 3, 4, 90, 6, 7])
