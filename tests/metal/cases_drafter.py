"""Cases of the kernels that only drafters need: tap, scatter_ids, block_conv, select_path."""

from __future__ import annotations

import struct

import numpy as np

from mtlqwen import metal_geometry as geometry

from .case_file import GUARD_ROWS, Case
from .cases_rows import guarded, header, normal, rng_of

LOGIT_ROWS, FEATURE_ROW = 2, 3  # header words
TOP = 16


def tap_case(dim: int, rows: int, first_row: int) -> Case:
    """The middle one of three taps."""
    case = Case(f"tap {rows}x{dim} from row {first_row}", 0.0)
    x = normal(rng_of(case.name), rows, dim)
    words = header(rows)
    words[FEATURE_ROW] = first_row
    features = np.full((first_row + rows + GUARD_ROWS, 3 * dim), np.nan)
    features[first_row : first_row + rows, dim : 2 * dim] = x
    launch = geometry.tap(dim, 3 * dim, rows + GUARD_ROWS)
    args = struct.pack("=IIII", dim, 0, 3 * dim, dim)
    case.launch(launch, args, case.input(words), case.input(x), case.output(features))
    return case


def scatter_ids_case(rows: int) -> Case:
    case = Case(f"scatter_ids {rows}", 0.0)
    rng = rng_of(case.name)
    ids = rng.integers(0, 5000, rows, np.int32)
    target_rows = rng.permutation(2 * rows).astype(np.int32)[:rows]
    expected = np.full(2 * rows, np.nan)
    expected[target_rows] = ids
    bindings = [case.input(v) for v in (header(1, 1, rows), ids, target_rows)]
    launch = geometry.scatter_ids(rows + GUARD_ROWS)
    output = case.output(expected, dtype=np.int32)
    case.launch(launch, struct.pack("=I", LOGIT_ROWS), *bindings, output)
    return case


def block_conv_case(
    lengths: list[int], dim: int, group: int, side: int, *, accumulate: bool
) -> Case:
    case = Case(f"block_conv {lengths} rows of {dim} by {group}, {side}, added {accumulate}", 1e-6)
    rng, rows = rng_of(case.name), sum(lengths)
    x, base = normal(rng, rows, dim), normal(rng, 2, 2, dim)
    dyn = normal(rng, rows, 2, 2, dim // group)
    row_sequence = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    y = normal(rng, rows + GUARD_ROWS, dim)
    y[rows:] = np.nan
    before = np.concatenate([np.zeros((1, dim)), x[:-1]])
    before[np.cumsum([0, *lengths[:-1]])] = 0
    taps = base[side] + np.repeat(dyn[:, side].astype(float), group, axis=-1)
    expected = taps[:, 0] * x + taps[:, 1] * before + (y[:rows] if accumulate else 0)
    operands = header(rows, len(lengths)), row_sequence, x, dyn, base
    bindings = [case.input(v) for v in operands]
    args = struct.pack("=IIII", dim, group, side, accumulate)
    launch = geometry.block_conv(dim, group, rows + GUARD_ROWS)
    case.launch(launch, args, *bindings, case.output(guarded(expected), y))
    return case


def codebook(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """As stored, and the values that this stands for."""
    if kind == "bf16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    stored = values.astype(np.float16 if kind == "f16" else np.float32)
    return stored, stored.astype(np.float32)


def greedy_path(
    before: int, logits: np.ndarray, h: np.ndarray, books: tuple[np.ndarray, np.ndarray]
) -> list[int]:
    """Row by row the best of the TOP largest logits behind the token chosen last."""
    predecessor, successor = books
    path = []
    for row, context in zip(logits, h, strict=True):
        row = np.where(np.isnan(row), -np.inf, row.astype(float))
        top = np.sort(np.argsort(-row, kind="stable")[:TOP])
        fits = row[top] + successor[top] @ (predecessor[before] * context).astype(float)
        before = int(top[fits.argmax()])
        path.append(before)
    return path


def select_path_case(
    kind: str, lengths: list[int], num_valid: int, *, rank: int = 48, ties: bool = False
) -> Case:
    """The first row of each block is the anchor. ties: equal logits, NaN, infinities."""
    case = Case(f"select_path_{kind} {lengths} of {num_valid}{' with ties' * ties}", 0.0)
    rng, rows = rng_of(case.name), sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    logit_rows = np.setdiff1d(np.arange(rows), starts).astype(np.int32)
    stride = num_valid + 9
    logits = 2 * normal(rng, len(logit_rows), stride)
    if ties:
        logits[:] = 1.0
        logits[1, ::3], logits[1, 1::3], logits[1, 2::3] = np.nan, -np.inf, -np.inf
        logits[2, 7::5] = 2.0
    logits[:, num_valid:] = 99  # no tokens
    h = normal(rng, len(logit_rows), rank)
    stored, books = zip(
        *(codebook(0.5 * normal(rng, num_valid, rank), kind) for _ in range(2)), strict=True
    )
    input_ids = rng.integers(0, num_valid, rows).astype(np.int32)
    drafts = np.split(np.arange(len(logit_rows)), np.cumsum([n - 1 for n in lengths])[:-1])
    expected = [
        greedy_path(input_ids[start], logits[of, :num_valid], h[of], books)
        for start, of in zip(starts, drafts, strict=True)
    ]
    words = header(rows, len(lengths), len(logit_rows))
    bindings = [case.input(v) for v in (words, input_ids, logit_rows, logits, h, *stored)]
    bindings.append(case.output(guarded(np.concatenate(expected)), dtype=np.int32))
    num_chunks = -(-num_valid // geometry.SELECT_CHUNK)
    bindings.append(case.input(np.full((len(logit_rows), num_chunks, TOP), -1, np.int32)))
    args = struct.pack("=III", num_valid, stride, rank)
    case.launch(
        geometry.select_path(kind, num_valid, len(logit_rows) + GUARD_ROWS), args, *bindings
    )
    return case


def all_cases() -> list[Case]:
    return [
        tap_case(256, 3, 0),
        tap_case(516, 2, 5),
        scatter_ids_case(1),
        scatter_ids_case(45),
        block_conv_case([1], 32, 16, 0, accumulate=False),
        block_conv_case([3, 1, 5], 544, 32, 0, accumulate=True),
        block_conv_case([2, 16], 192, 16, 1, accumulate=False),
        select_path_case("f32", [2], 20),
        select_path_case("f32", [3], 10),
        select_path_case("f16", [4, 1, 10], 9001),
        select_path_case("bf16", [16, 2], 17001, rank=16),
        select_path_case("f32", [4], 8300, ties=True),
    ]
