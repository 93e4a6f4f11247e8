"""Cases of the kernels that touch the K/V cache, with page tables in place of the caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mtlqwen import metal_geometry as geometry

from . import cases_sequences as sequences
from .case_file import Case

PAGE_BYTES = 16 << 10
CACHES = {  # bindings, of each library
    "rotary": (10, 11),
    "attention_decode": (5, 6),
    "attention_prefill": (5, 6),
}


def paged(case: Case) -> Case:
    """Its caches as page tables; the tiles lie in reverse. Where a tile is NaN, as one that no row
    may touch is, the table leads to a tile of NaN that all of those share.
    """
    case.name = f"paged {case.name}"
    tables: dict[int, int] = {}
    for dispatch in case.dispatches:
        constants = dict(dispatch.launch.constants) | {geometry.PAGE_BYTES_INDEX: PAGE_BYTES}
        dispatch.launch = replace(dispatch.launch, constants=tuple(constants.items()))
        for binding in CACHES[dispatch.launch.library]:
            cache = dispatch.bindings[binding]
            if cache not in tables:
                tables[cache] = _table(case, cache)
            dispatch.bindings[binding] = tables[cache]
    return case


def _table(case: Case, cache: int) -> int:
    """Turns a cache [tiles, ..] into a heap of its tiles; the buffer of its page table."""
    wanted = case.expected.get(cache, case.buffers[cache])
    tile_bytes = case.buffers[cache][0].nbytes
    assert tile_bytes % PAGE_BYTES == 0, f"{case.name}: tiles of {tile_bytes} bytes"
    num_tiles = len(wanted)
    is_used = ~np.isnan(wanted).reshape(num_tiles, -1).all(1)
    places = np.where(is_used, num_tiles - np.arange(num_tiles), 0)  # 0: the shared tile

    def heap_of(tiles: np.ndarray) -> np.ndarray:
        heap = np.full((num_tiles + 1, *tiles.shape[1:]), np.nan, tiles.dtype)
        heap[places[is_used]] = tiles[is_used]
        return heap

    case.buffers[cache] = heap_of(case.buffers[cache])
    if cache in case.expected:
        case.expected[cache] = heap_of(case.expected[cache])
    pages = places[:, None] * tile_bytes + np.arange(0, tile_bytes, PAGE_BYTES)
    return case.addresses(cache, pages.reshape(-1))


def all_cases() -> list[Case]:
    batch, heads = sequences.Batch, sequences.Heads
    packed = batch([1, 3, 7], [130, 0, 125], [2, 0, 1])
    drafter = heads(4, 2, 128, gated=False, causal=False, window=70)
    return [
        paged(sequences.rotary_case(4, 2, packed)),
        paged(sequences.rotary_case(2, 2, packed, 96, 32)),
        paged(sequences.rotary_case(0, 2, packed, 128, 128, gated=False)),
        paged(sequences.attention_case(heads(4, 2), batch([1, 2], [127, 130], [1, 0]))),
        paged(sequences.attention_case(heads(6, 1), batch([2], [300], [0]), max_splits=2)),
        paged(sequences.attention_case(heads(4, 2), packed)),
        paged(sequences.attention_case(drafter, batch([3, 6], [130, 130], [1, 0]))),
    ]


def small_cases() -> list[Case]:
    """For sanitizers: each kernel once."""
    batch = sequences.Batch([1, 6], [130, 125], [1, 0], 256)
    heads = sequences.Heads(2, 1)
    return [
        paged(sequences.rotary_case(2, 1, batch)),
        paged(sequences.attention_case(heads, batch)),
    ]
