"""Every Metal kernel, type and shape class against plain float64 NumPy, under several schedules."""

from __future__ import annotations

import numpy as np
import pytest

from mtlqwen import metal_geometry as geometry

from . import cases_drafter, cases_paged, cases_rows, cases_sequences
from .case_file import Case, KernelFailure, run_cases

CASES = [
    *cases_rows.all_cases(),
    *cases_sequences.all_cases(),
    *cases_drafter.all_cases(),
    *cases_paged.all_cases(),
]


def run(emulator, case: Case, mode: str = "plain") -> dict[int, np.ndarray]:
    def library(name: str, kernels: frozenset[str]):
        return emulator.library(emulator.KERNELS / f"{name}.metal", mode)

    return run_cases([case], [emulator.driver(mode)], library, emulator.ENVIRONMENT[mode])[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_kernel_gives_what_numpy_gives(emulator, case: Case, seed: int):
    case.seed = seed
    case.check(run(emulator, case))


@pytest.mark.parametrize("weight_type", geometry.TYPES)
def test_row_of_a_product_does_not_depend_on_the_number_of_rows(emulator, weight_type: str):
    """One to four rows go through one order of summation, five and more through another."""
    wide = geometry.Gpu(geometry.APPLE9, num_cores=1)
    for gpu, groups in ((wide, (1, 2, 3, 4)), (geometry.Gpu(geometry.APPLE9), (5, 9, 17, 33))):
        results = []
        for rows in groups:
            case = cases_rows.linear_case(weight_type, 512, 98, rows, gpu=gpu)
            case.buffers[1], case.buffers[2] = _shared_operands(weight_type, rows)
            results.append(next(iter(run(emulator, case).values())))
        for result in results[1:]:
            np.testing.assert_array_equal(result[: groups[0]], results[0][: groups[0]])


def _shared_operands(weight_type: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = cases_rows.rng_of(weight_type)
    raw, _ = cases_rows.random_rows(weight_type, 98, 512, rng)
    return raw, cases_rows.normal(rng, 33, 512)[:rows]


def test_attention_of_a_row_does_not_depend_on_its_neighbours(emulator):
    """Alone, and packed with others: the same bits."""
    heads, batch = cases_sequences.Heads(4, 2), cases_sequences.Batch([2], [200], [0])
    alone = cases_sequences.attention_case(heads, batch)
    packed = cases_sequences.attention_case(
        heads, cases_sequences.Batch([2, 1, 6], [200, 9, 3], [0, 2, 1])
    )
    q, keys, values, qg = 4, 5, 6, 7
    for index in (q, qg):
        packed.buffers[index][:2] = alone.buffers[index]
    for index in (keys, values):
        packed.buffers[index][: len(alone.buffers[index])] = alone.buffers[index]
    first = run(emulator, alone)[8][:2]
    np.testing.assert_array_equal(run(emulator, packed)[8][:2], first)


def test_emulator_reports_a_lane_that_leaves_before_a_simd_operation(emulator, tmp_path):
    text = """
#include <metal_stdlib>
using namespace metal;
kernel void leaves(device float *x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]])
{
    if (lane == 3)
        return;
    x[lane] = simd_sum(x[lane]);
}
"""
    assert "with 31 of 32 lanes" in _failure(emulator, tmp_path, "leaves", text)


def test_emulator_reports_a_divergent_barrier(emulator, tmp_path):
    text = """
#include <metal_stdlib>
using namespace metal;
kernel void diverges(device float *x [[buffer(0)]], uint i [[thread_index_in_threadgroup]])
{
    if (i < 32)
        threadgroup_barrier(mem_flags::mem_threadgroup);
    x[i] = 0.0f;
}
"""
    assert "line 7 reached by 32 of 64 threads" in _failure(emulator, tmp_path, "diverges", text)


def _failure(emulator, tmp_path, name: str, text: str) -> str:
    path = tmp_path / f"{name}.metal"
    path.write_text(text)
    case = Case(name)
    launch = geometry.Launch(name, name, (1, 1, 1), 64)
    case.launch(launch, b"", case.output(np.zeros(64), np.zeros(64, np.float32)))
    with pytest.raises(KernelFailure) as failure:
        run_cases([case], [emulator.driver("plain")], lambda *_: emulator.library(path, "plain"))
    return str(failure.value)
