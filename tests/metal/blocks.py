"""Random GGUF rows and their exact values, written from the layouts of the block formats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], float)

Values = Callable[[np.ndarray], np.ndarray]


def random_rows(weight_type: str, rows: int, dim: int, rng: np.random.Generator):
    """(raw uint8 [rows, row_bytes], float64 [rows, dim])"""
    values, block_values, block_bytes, scale_offsets = FORMATS[weight_type]
    blocks = rng.integers(0, 256, (rows * dim // block_values, block_bytes), np.uint8)
    if not scale_offsets:  # float types: any bits would include NaN
        floats = rng.standard_normal((len(blocks), 1), np.float32)
        blocks = _float_bytes(weight_type, floats)
    for offset in scale_offsets:
        scales = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1), values(blocks).reshape(rows, dim)


def _float_bytes(weight_type: str, floats: np.ndarray) -> np.ndarray:
    if weight_type == "f16":
        return floats.astype(np.float16).view(np.uint8)
    raw = floats.view(np.uint8)
    return raw[:, 2:] if weight_type == "bf16" else raw


def _f16(blocks: np.ndarray, offset: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(float)


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    return np.concatenate([blocks & 15, blocks >> 4], axis=-1).astype(int)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (
        (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16)
        .view(np.float32)
        .astype(float)
    )


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _six_bits(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minimums [n, 8] from 12 bytes."""
    scales = np.concatenate([s[:, 0:4] & 63, s[:, 8:12] & 15 | s[:, 0:4] >> 6 << 4], axis=1)
    minimums = np.concatenate([s[:, 4:8] & 63, s[:, 8:12] >> 4 | s[:, 4:8] >> 6 << 4], axis=1)
    return scales.astype(float), minimums.astype(float)


def _q45_k(blocks: np.ndarray, with_fifth_bit: bool) -> np.ndarray:
    scales, minimums = _six_bits(blocks[:, 4:16])
    q = blocks[:, -128:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    q = q.reshape(-1, 8, 32).astype(int)
    if with_fifth_bit:
        q |= (blocks[:, 16:48].astype(int)[:, None, :] >> np.arange(8)[:, None] & 1) << 4
    return (_f16(blocks, 0) * scales)[..., None] * q - (_f16(blocks, 2) * minimums)[..., None]


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = (
        blocks[:, :128].astype(int).reshape(-1, 2, 1, 2, 32) >> np.array([0, 4])[:, None, None] & 15
    )
    high = blocks[:, 128:192].astype(int).reshape(-1, 2, 1, 32) >> 2 * np.arange(4)[:, None] & 3
    q = (low.reshape(-1, 2, 4, 32) | high << 4) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(float)
    return (_f16(blocks, 208) * scales)[..., None] * q.reshape(-1, 16, 16)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(int)
    j = np.arange(8)
    scales = blocks[:, 4 + j // 2].astype(int) >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4
    q = IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return (_f16(blocks, 0) * (scales - 32))[..., None] * q


# values of blocks, values a block, bytes a block, where its f16 scales lie
FORMATS: dict[str, tuple[Values, int, int, tuple[int, ...]]] = {
    "f32": (lambda b: np.ascontiguousarray(b).view(np.float32).astype(float), 1, 4, ()),
    "f16": (lambda b: _f16(b, 0), 1, 2, ()),
    "bf16": (_bf16, 1, 2, ()),
    "q8_0": (_q8_0, 32, 34, (0,)),
    "q4_0": (_q4_0, 32, 18, (0,)),
    "q4_k": (lambda b: _q45_k(b, False), 256, 144, (0, 2)),
    "q5_k": (lambda b: _q45_k(b, True), 256, 176, (0, 2)),
    "q6_k": (_q6_k, 256, 210, (208,)),
    "iq4_xs": (_iq4_xs, 256, 136, (0,)),
}
