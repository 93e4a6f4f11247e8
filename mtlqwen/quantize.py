"""Float32 values to the blocks of each writable tensor type.

An encoder takes f32 [num_blocks, block_values] and gives u8 [num_blocks, block_bytes]. The searches
work on transposed chunks, values of a block along axis 0, so that every NumPy operation runs over
thousands of blocks at once and stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gguf_format import TensorType

_CHUNK_VALUES = 1 << 16


def _f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.astype("<f4", copy=False).view(np.uint8)


def _f16(blocks: np.ndarray) -> np.ndarray:
    halves = blocks.astype("<f2")
    if np.any(np.isinf(halves) & np.isfinite(blocks)):
        raise ValueError(f"F16 holds values up to 65504, not {np.abs(blocks).max():g}")
    return halves.view(np.uint8)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    """The upper half of each value, rounded to nearest, ties to even; NaN stays NaN."""
    bits = blocks.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    rounded = np.where(np.isnan(blocks), bits >> 16 | 0x40, rounded)
    return rounded.astype("<u2").view(np.uint8)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """d = max|x| / 127, codes rounded half away from zero."""
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)
    codes = np.copysign(whole + (size - whole >= 0.5), scaled).astype(np.int8)
    return np.concatenate([_half_bytes(d), codes.view(np.uint8)], axis=1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(blocks.T)
    d = _round_to_half(_symmetric_scale(values, 8))
    codes = (_nearest(values, d, -8, 7) + 8).astype(np.uint8).T
    return np.concatenate([_half_bytes(d[:, None]), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(blocks.reshape(-1, 32).T)
    scales, mins = (fitted.reshape(-1, 8) for fitted in _affine_scales(values, 15))
    d = _round_to_half(scales.max(axis=1, keepdims=True) / 63)
    m = _round_to_half(mins.max(axis=1, keepdims=True) / 63)
    scale_codes = np.clip(np.rint(scales * _inverse(d)), 0, 63)
    min_codes = np.clip(np.rint(mins * _inverse(m)), 0, 63)
    values += (m * min_codes).reshape(-1)
    codes = _nearest(values, (d * scale_codes).reshape(-1), 0, 15).astype(np.uint8)
    codes = codes.T.reshape(-1, 4, 2, 32)
    packed = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 128)
    pairs = _pack_six_bit_pairs(scale_codes.astype(np.uint8), min_codes.astype(np.uint8))
    return np.concatenate([_half_bytes(d), _half_bytes(m), pairs, packed], axis=1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(blocks.reshape(-1, 16).T)
    scales = _symmetric_scale(values, 32).reshape(-1, 16)
    d = _round_to_half(_peak(scales.T)[:, None] / -128)
    scale_codes = np.clip(np.rint(scales * _inverse(d)), -128, 127)
    codes = _nearest(values, (d * scale_codes).reshape(-1), -32, 31) + 32
    codes = codes.astype(np.uint8).T.reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    low = low[:, :, :2] | low[:, :, 2:] << 4
    high = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    scale_bytes = scale_codes.astype(np.int8).view(np.uint8)
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scale_bytes, _half_bytes(d)]
    return np.concatenate(parts, axis=1)


def _symmetric_scale(values: np.ndarray, levels: int) -> np.ndarray:
    """Scale s [n] with the least weighted squared error of s * code; values [k, n].

    Codes are -levels ... levels - 1. Tried: the value of largest size near code -levels, in 19
    steps, each followed by the best s for the codes it gives.
    """
    peak = _peak(values)
    inverse_peak = _inverse(peak)
    weights = _weights(values)
    weighted = weights * values
    best = np.zeros_like(peak)
    best_gain = np.zeros_like(peak)
    codes, product = np.empty_like(values), np.empty_like(values)
    for step in range(-9, 10):
        np.multiply(values, inverse_peak * np.float32(-levels - 0.1 * step), out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, -levels, levels - 1, out=codes)
        sum_cx = np.multiply(codes, weighted, out=product).sum(axis=0)
        np.multiply(codes, codes, out=codes)
        sum_cc = np.multiply(codes, weights, out=product).sum(axis=0)
        scale = sum_cx * _inverse(sum_cc)
        gain = scale * sum_cx
        better = gain > best_gain
        np.copyto(best, scale, where=better)
        np.copyto(best_gain, gain, where=better)
    return best


def _affine_scales(values: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale s and min m >= 0, [n] each, with the least weighted squared error of s * code - m.

    values [k, n]; codes are 0 ... top. Tried: the range of the values over top - 1 ... top + 1
    codes, in 21 steps, each followed by the best s and m for the codes it gives.
    """
    low = np.minimum(values.min(axis=0), 0)
    inverse_span = _inverse(values.max(axis=0) - low)
    weights = _weights(values)
    shifted = values - low
    weighted = weights * shifted  # the fit is made on values - low, where its sums lose no digits
    sum_w, sum_x = weights.sum(axis=0), weighted.sum(axis=0)
    best_scale, best_min = np.zeros_like(low), -low
    best_gain = np.zeros_like(low)
    codes, product = np.empty_like(values), np.empty_like(values)
    for step in range(21):
        np.multiply(shifted, inverse_span * np.float32(top - 1 + 0.1 * step), out=codes)
        np.rint(codes, out=codes)
        np.minimum(codes, top, out=codes)
        sum_cx = np.multiply(codes, weighted, out=product).sum(axis=0)
        sum_c = np.multiply(codes, weights, out=product).sum(axis=0)
        sum_cc = np.multiply(codes, product, out=product).sum(axis=0)
        inverse_det = _inverse(sum_w * sum_cc - sum_c * sum_c)
        offset = (sum_cc * sum_x - sum_c * sum_cx) * inverse_det
        offset = np.minimum(offset, -low)  # the stored min is not negative
        scale = (sum_cx - offset * sum_c) * _inverse(sum_cc)
        gain = scale * sum_cx + offset * (2 * sum_x - offset * sum_w - scale * sum_c)
        better = gain > best_gain
        np.copyto(best_scale, scale, where=better)
        np.copyto(best_min, -low - offset, where=better)
        np.copyto(best_gain, gain, where=better)
    return np.maximum(best_scale, 0), best_min


def _weights(values: np.ndarray) -> np.ndarray:
    """What an error at each value costs: its size plus the block's rms."""
    return np.abs(values) + np.sqrt(np.mean(values * values, axis=0))


def _peak(values: np.ndarray) -> np.ndarray:
    """The value of largest size in each column, with its sign."""
    high, low = values.max(axis=0), values.min(axis=0)
    return np.where(high > -low, high, low)


def _nearest(values: np.ndarray, scales: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.rint(values * _inverse(scales)), low, high)


def _inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, and 0 where that would be infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / values
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _round_to_half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _half_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view(np.uint8)


def _pack_six_bit_pairs(scales: np.ndarray, mins: np.ndarray) -> np.ndarray:
    """Scales and mins below 64, u8 [n, 8] each -> u8 [n, 12]."""
    parts = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        mins[:, :4] | mins[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4,
    ]
    return np.concatenate(parts, axis=1)


def _in_chunks(encode: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Runs an encoder over pieces that fit the cache; refuses values that have no scale."""

    def encode_all(blocks: np.ndarray) -> np.ndarray:
        step = _CHUNK_VALUES // blocks.shape[1]
        pieces = []
        for begin in range(0, len(blocks), step):
            piece = blocks[begin : begin + step]
            largest = np.abs(piece).max()
            if not largest <= np.finfo(np.float16).max:
                raise ValueError(f"quantised types hold values up to 65504, not {largest:g}")
            pieces.append(encode(piece))
        return np.concatenate(pieces)

    return encode_all


ENCODERS: dict[TensorType, Callable[[np.ndarray], np.ndarray]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _in_chunks(_q8_0),
    TensorType.Q4_0: _in_chunks(_q4_0),
    TensorType.Q4_K: _in_chunks(_q4_k),
    TensorType.Q6_K: _in_chunks(_q6_k),
}
