"""Tensor types to float32 and back, in NumPy.

Blocks run along a row: a block holds its scale(s) as f16 and one small integer ("code") per value.
Dequantising is exact: each value is the correctly rounded result of the type's formula, and the
order of the operations cannot matter, since the products have at most 24 significant bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gguf_format import TensorType
from .quantize import ENCODERS

# The sixteen levels of IQ4_NL and IQ4_XS; MXFP4 levels are twice those of E2M1.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
MXFP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantize(rows: np.ndarray, type: TensorType) -> np.ndarray:
    """u8 [..., row_bytes] of a tensor type -> f32 [..., num_values]."""
    if rows.dtype != np.uint8 or rows.shape[-1] % type.block_bytes:
        raise ValueError(
            f"{type.name} rows are u8 of a multiple of {type.block_bytes} bytes,"
            f" not {rows.dtype} {list(rows.shape)}"
        )
    blocks = np.ascontiguousarray(rows).reshape(-1, type.block_bytes)
    num_values = rows.shape[-1] // type.block_bytes * type.block_values
    return _DECODERS[type](blocks).reshape(*rows.shape[:-1], num_values)


def quantize(values: np.ndarray, type: TensorType) -> np.ndarray:
    """f32 [..., num_values] -> u8 [..., row_bytes]. ValueError for what the type cannot hold.

    F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K can be written; the other types are only read.
    """
    if type not in ENCODERS:
        writable = " ".join(t.name for t in ENCODERS)
        raise ValueError(f"{type.name} cannot be written, only {writable}")
    row_bytes = type.row_bytes(values.shape[-1])
    values = np.ascontiguousarray(values, np.float32)
    with np.errstate(over="ignore"):
        raw = ENCODERS[type](values.reshape(-1, type.block_values))
    return raw.reshape(*values.shape[:-1], row_bytes)


def _f16(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """[..., 16] bytes -> [..., 32] codes: the low halves, then the high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _bits(raw: np.ndarray) -> np.ndarray:
    """[..., k] bytes -> [..., 8k] bits, lowest first."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little")


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _f16(blocks[:, 2:4])


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _f16(blocks[:, :2]) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _f16(blocks[:, :2]) * codes + _f16(blocks[:, 2:4])


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks[:, :2]) * IQ4_LEVELS[_nibbles(blocks[:, 2:])]


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return scale * MXFP4_LEVELS[_nibbles(blocks[:, 1:])]


_TWO_BIT_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BIT_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]


def _two_bit_codes(raw: np.ndarray) -> np.ndarray:
    """[n, 64] bytes -> [n, 256]: each run of 32 bytes holds four runs of 32 codes."""
    return (raw.reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS & 3).reshape(-1, 256)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    scales, d, m = blocks[:, :16], _f16(blocks[:, 80:82]), _f16(blocks[:, 82:84])
    codes = _two_bit_codes(blocks[:, 16:80]).reshape(-1, 16, 16)
    return (d * (scales & 15))[..., None] * codes - (m * (scales >> 4))[..., None]


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    packed, d = blocks[:, 96:108], _f16(blocks[:, 108:110])
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:] >> _TWO_BIT_SHIFTS & 3).reshape(-1, 16)
    scales = d * ((low | high << 4).astype(np.float32) - 32)
    third = (blocks[:, None, :32] >> _BIT_SHIFTS & 1).reshape(-1, 256)
    codes = (_two_bit_codes(blocks[:, 32:96]) | third << 2).astype(np.float32) - 4
    return scales[..., None] * codes.reshape(-1, 16, 16)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, 12] bytes -> scales and mins, [n, 8] each."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | (first >> 6) << 4], axis=1)
    mins = np.concatenate([second & 63, rest >> 4 | (second >> 6) << 4], axis=1)
    return scales, mins


def _paired_nibbles(raw: np.ndarray) -> np.ndarray:
    """[n, 128] bytes -> [n, 8, 32]: each run of 32 bytes holds two runs of codes."""
    raw = raw.reshape(-1, 4, 1, 32)
    return np.concatenate([raw & 15, raw >> 4], axis=2).reshape(-1, 8, 32)


def _affine(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Values of Q4_K and Q5_K: d * scale * code - m * min, per run of 32."""
    scales, mins = _six_bit_pairs(blocks[:, 4:16])
    d, m = _f16(blocks[:, :2]), _f16(blocks[:, 2:4])
    return (d * scales)[..., None] * codes - (m * mins)[..., None]


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _affine(blocks, _paired_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = blocks[:, None, 16:48] >> _BIT_SHIFTS & 1
    return _affine(blocks, _paired_nibbles(blocks[:, 48:]) | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    packed = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 256)
    codes = (low | _two_bit_codes(blocks[:, 128:192]) << 4).astype(np.float32) - 32
    scales = _f16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return scales[..., None] * codes.reshape(-1, 16, 16)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> 2 * np.arange(8, dtype=np.uint16) & 3
    low = blocks[:, 4:8]
    low = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    scales = _f16(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    return scales[..., None] * IQ4_LEVELS[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]


_DECODERS: dict[TensorType, Callable[[np.ndarray], np.ndarray]] = {
    TensorType.F32: lambda blocks: blocks.view("<f4").copy(),
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
    TensorType.IQ4_NL: _iq4_nl,
    TensorType.IQ4_XS: _iq4_xs,
    TensorType.MXFP4: _mxfp4,
}
