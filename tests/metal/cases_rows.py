"""Cases of the kernels that work row by row: embed, linear, norms, swiglu, gather, argmax."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from mtlqwen import metal_geometry as geometry

from .blocks import random_rows
from .case_file import GUARD_ROWS, Case

ROWS = 0  # header word


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def header(rows: int, sequences: int = 1, logit_rows: int = 1) -> np.ndarray:
    return np.array([rows, sequences, logit_rows, *[0] * 13], np.uint32)


def guarded(values: np.ndarray) -> np.ndarray:
    """What is expected of a buffer with rows to spare."""
    return np.concatenate([values, np.full((GUARD_ROWS, *values.shape[1:]), np.nan)])


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def linear_case(
    weight_type: str,
    in_dim: int,
    out_dim: int,
    rows: int,
    *,
    accumulate: bool = False,
    gpu: geometry.Gpu | None = None,
    max_rows: int | None = None,
) -> Case:
    """max_rows > rows: a plan for more rows than the step has."""
    gpu = gpu or geometry.Gpu()
    launch = geometry.linear(gpu, weight_type, in_dim, out_dim, max_rows or rows)
    case = Case(f"{launch.kernel} {rows}x{in_dim} to {out_dim}{' added' if accumulate else ''}")
    if "_mm" in launch.kernel and weight_type not in ("f32", "bf16"):
        case.tolerance = 5e-4  # weights as half
    rng = rng_of(case.name)
    raw, w = random_rows(weight_type, out_dim, in_dim, rng)
    x = normal(rng, rows, in_dim)
    y = normal(rng, rows + GUARD_ROWS, out_dim)
    y[rows:] = np.nan
    expected = guarded(x.astype(float) @ w.T + (y[:rows] if accumulate else 0))
    args = struct.pack("=IIIIQ", in_dim, out_dim, ROWS, accumulate, raw.shape[1])
    bindings = case.input(header(rows)), case.input(raw), case.input(x)
    case.launch(launch, args, *bindings, case.output(expected, y))
    return case


def embed_case(weight_type: str, dim: int, rows: int) -> Case:
    case = Case(f"embed_{weight_type} {rows}x{dim}", 1e-6)
    rng = rng_of(case.name)
    raw, table = random_rows(weight_type, 37, dim, rng)
    ids = rng.integers(0, 37, rows, np.int32)
    args = struct.pack("=IIQ", dim, 37, raw.shape[1])
    bindings = case.input(header(rows)), case.input(ids), case.input(raw)
    launch = geometry.embed(weight_type, dim, rows + GUARD_ROWS)
    case.launch(launch, args, *bindings, case.output(guarded(table[ids])))
    return case


def rmsnorm_case(dim: int, rows: int) -> Case:
    case = Case(f"rmsnorm {rows}x{dim}", 1e-6)
    rng = rng_of(case.name)
    x, w = normal(rng, rows, dim), normal(rng, dim)
    wide = x.astype(float)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w
    bindings = case.input(header(rows)), case.input(x), case.input(w)
    launch = geometry.rmsnorm(dim, rows + GUARD_ROWS)
    case.launch(
        launch, struct.pack("=IIf", dim, ROWS, 1e-6), *bindings, case.output(guarded(expected))
    )
    return case


def gather_case(dim: int, rows: int) -> Case:
    case = Case(f"gather {rows}x{dim}", 0.0)
    rng = rng_of(case.name)
    x, indices = normal(rng, 11, dim), rng.integers(0, 11, rows, np.int32)
    bindings = case.input(header(rows)), case.input(indices), case.input(x)
    launch = geometry.gather(dim, rows + GUARD_ROWS)
    case.launch(launch, struct.pack("=II", dim, ROWS), *bindings, case.output(guarded(x[indices])))
    return case


def swiglu_case(dim: int, rows: int) -> Case:
    case = Case(f"swiglu {rows}x{dim}", 1e-6)
    rng = rng_of(case.name)
    gate, up = 4 * normal(rng, rows, dim), normal(rng, rows, dim)
    wide = gate.astype(float)
    bindings = case.input(header(rows)), case.input(gate), case.input(up)
    launch = geometry.swiglu(dim, rows + GUARD_ROWS)
    output = case.output(guarded(wide * sigmoid(wide) * up))
    case.launch(launch, struct.pack("=II", dim, ROWS), *bindings, output)
    return case


def gated_norm_case(heads: int, dim: int, rows: int) -> Case:
    case = Case(f"gated_norm {rows}x{heads}x{dim}", 1e-6)
    rng = rng_of(case.name)
    o, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
    wide, gate = o.astype(float), z.astype(float)
    expected = wide / np.sqrt((wide**2).mean(2, keepdims=True) + 1e-6) * w * gate * sigmoid(gate)
    bindings = [case.input(v) for v in (header(rows), o, z, w)]
    launch = geometry.gated_norm(heads, dim, rows + GUARD_ROWS)
    args = struct.pack("=IIIf", heads, dim, ROWS, 1e-6)
    case.launch(launch, args, *bindings, case.output(guarded(expected)))
    return case


def argmax_case(name: str, logits: np.ndarray, num_valid: int, expected: list[int]) -> Case:
    rows, stride = logits.shape
    case = Case(f"argmax {name}", 0.0)
    launches = geometry.argmax(num_valid, rows + GUARD_ROWS)
    workspace = np.zeros(geometry.argmax_workspace_bytes(num_valid, rows + GUARD_ROWS), np.uint8)
    bindings = case.input(header(rows)), case.input(logits.astype(np.float32))
    ids = case.output(guarded(np.array(expected, float)), dtype=np.int32)
    args = struct.pack("=III", num_valid, stride, ROWS)
    case.launch(launches, args, *bindings, ids, case.input(workspace))
    return case


def argmax_cases() -> list[Case]:
    rng = rng_of("argmax")
    logits = normal(rng, 3, 9100)
    plain = argmax_case("in 3 blocks", logits, 9001, list(logits[:, :9001].argmax(1)))
    ties = np.zeros((4, 5000), np.float32)
    ties[0, [4097, 17, 4999]] = 3.0  # lowest index among equals, over blocks
    ties[1, ::2] = -0.0  # both zeros are equal
    ties[2] = -np.inf
    ties[2, 4500] = -1e30
    ties[3] = np.nan  # NaN never wins
    ties[3, 4200] = -np.inf
    tied = argmax_case("ties, zeros, infinities and NaN", ties, 5000, [17, 0, 4500, 4200])
    padding = np.full((1, 300), -5.0)
    padding[0, 260] = 9.0
    return [plain, tied, argmax_case("ignores padding", padding, 256, [0])]


def all_cases() -> list[Case]:
    apple9 = geometry.Gpu(geometry.APPLE9, 10)
    small = geometry.Gpu(geometry.APPLE9, num_cores=1)  # the wide variants pay early
    cases = []
    for weight_type in geometry.TYPES:
        dim = 256
        cases += [embed_case(weight_type, 256 if weight_type in geometry.K_TYPES else 96, 3)]
        cases += [linear_case(weight_type, dim, 37, rows) for rows in (1, 2, 3, 4, 7)]
        cases += [linear_case(weight_type, 3 * dim, 130, 9, accumulate=True)]
        cases += [
            linear_case(weight_type, dim, 67, 33),
            linear_case(weight_type, dim, 64, 65, gpu=apple9),
        ]
        cases += [linear_case(weight_type, 5 * dim, 5, 1, accumulate=True)]
        cases += [linear_case(weight_type, dim, 101, 1, gpu=small)]
    cases += [
        linear_case("q4_k", 256, 19, 2, max_rows=4),
        linear_case("q8_0", 256, 19, 3, max_rows=32),
    ]
    cases += [linear_case("q4_0", 256, 1, 1), linear_case("q6_k", 256, 1, 5)]
    cases += [rmsnorm_case(256, 3), rmsnorm_case(4, 1), rmsnorm_case(2564, 2)]
    cases += [gather_case(256, 4), gather_case(516, 1), swiglu_case(512, 3), swiglu_case(2052, 1)]
    cases += [gated_norm_case(4, 128, 3), gated_norm_case(5, 132, 2)]
    return cases + argmax_cases()
