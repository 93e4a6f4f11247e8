"""A few small cases for each library: every kernel template, every decoder. For sanitizers."""

from __future__ import annotations

from mtlqwen import metal_geometry as geometry

from . import cases_drafter as drafter
from . import cases_paged
from . import cases_rows as rows
from . import cases_sequences as sequences
from .case_file import Case

Batch = sequences.Batch


def small_cases() -> dict[str, list[Case]]:
    linear, heads = rows.linear_case, sequences.Heads
    drafts = Batch([2, 0, 18], [9, 4, 3], [1, 0, 2], bound=(0,), pending={0: 2, 1: 3, 2: 1})
    blocks = heads(4, 2, 128, gated=False, causal=False, window=70)
    mixed = Batch([1, 6, 2], [130, 0, 125], [2, 0, 1], 256)
    return {
        "embed": [rows.embed_case(t, 256, 2) for t in geometry.TYPES],
        "linear_mv": [
            linear("q6_k", 256, 3, 4, accumulate=True),
            *(linear(t, 256, 5, 1) for t in geometry.TYPES),
        ],
        "linear_mm": [linear(t, 256, 65, 9) for t in geometry.TYPES],
        "rmsnorm": [rows.rmsnorm_case(1028, 2)],
        "gather": [rows.gather_case(516, 2)],
        "swiglu": [rows.swiglu_case(1028, 2)],
        "gated_norm": [rows.gated_norm_case(5, 132, 2)],
        "argmax": rows.argmax_cases(),
        "tap": [drafter.tap_case(516, 2, 3)],
        "scatter_ids": [drafter.scatter_ids_case(33)],
        "block_conv": [drafter.block_conv_case([2, 3], 544, 32, 1, accumulate=True)],
        "select_path": [
            drafter.select_path_case("f16", [3, 11], 8200),
            drafter.select_path_case("f32", [4], 300, ties=True),
            drafter.select_path_case("bf16", [2], 10),
        ],
        "rotary": [
            sequences.rotary_case(6, 1, mixed, 64, 16),
            sequences.rotary_case(0, 2, mixed, 128, 128, gated=False),
            sequences.rotary_case(2, 1, mixed, 128, 128, gated=False),
        ],
        "attention": [
            sequences.attention_case(heads(4, 2), Batch([2, 1], [127, 0], [0, 1], 256), 1),
            sequences.attention_case(heads(1, 1), Batch([1], [130], [0], 256), 2),
            sequences.attention_case(heads(4, 2), Batch([6, 5], [60, 125], [1, 0], 256), 2),
            sequences.attention_case(heads(2, 1), Batch([6], [600], [0], 640), 8),
            sequences.attention_case(blocks, Batch([3, 6], [130, 130], [1, 0], 256), 2),
        ],
        "paged": cases_paged.small_cases(),
        "conv": [sequences.conv_case(1, 200, mixed), sequences.conv_case(1, 200, drafts)],
        "delta": [
            sequences.delta_case(1, 1, Batch([2, 35, 1], [3, 0, 0], [1, 0, 2])),
            sequences.delta_case(2, 2, drafts),
        ],
    }
