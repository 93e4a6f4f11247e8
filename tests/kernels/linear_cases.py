"""docs/cpu-arithmetic.md, "Matrix products", in NumPy: every bit of records and products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from launch import ARGS, ROWS, header, run

from mtlqwen.gguf import TensorType
from mtlqwen.quants import dequantize

FLOAT_TYPES = [TensorType.F32, TensorType.F16, TensorType.BF16]
BLOCK_TYPES = [t for t in TensorType if t.block_values == 32]
SUPER_BLOCK_TYPES = [t for t in TensorType if t.block_values == 256]
INTEGER_TYPES = BLOCK_TYPES + SUPER_BLOCK_TYPES

ARGS["quantize"] = "=II"
ARGS |= {f"linear_{t.name.lower()}": "=IIIIQ" for t in TensorType}
ARGS |= {f"embed_{t.name.lower()}": "=IIQ" for t in TensorType}

RECORD = np.dtype(  # kernels/cpu/quantize.h
    [
        ("q", "i1", 256),
        ("shift", "i4", 8),
        ("sum32", "i4", 8),
        ("pairs16", "i2", 16),
        ("pairs32", "i2", 8),
        ("step", "f4"),
        ("reserved", "u4", 3),
    ]
)

# Where the f16 step and offset of a block lie; MXFP4 has an exponent byte at 0 instead.
STEP_AT = {TensorType.Q6_K: 208, TensorType.Q3_K: 108, TensorType.Q2_K: 80}
OFFSET_AT = {
    TensorType.Q4_1: 2,
    TensorType.Q5_1: 2,
    TensorType.Q4_K: 2,
    TensorType.Q5_K: 2,
    TensorType.Q2_K: 82,
}


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding to f32: the f64 sum is rounded to odd first."""
    product, c = a.astype(np.float64) * b, np.asarray(c, np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    is_even = (total.view(np.int64) & 1) == 0
    towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & is_even, towards, total).astype(np.float32)


def quantize(x: np.ndarray) -> np.ndarray:
    """f32 [rows, dim] -> records [ceil(dim / 256), rows]."""
    rows, dim = x.shape
    padded = np.zeros((rows, -(-dim // 256) * 256), np.float32)
    padded[:, :dim] = x
    groups = padded.reshape(rows, -1, 8, 32).transpose(1, 0, 2, 3)
    tops = np.abs(groups).max(-1)
    block_top = tops.max(-1)
    shift = np.full(tops.shape, 3)
    for smaller in (2, 1, 0):
        shift[tops <= np.ldexp(block_top, smaller - 3)[..., None]] = smaller
    used = block_top >= np.float32(2.0**-100)
    top = np.where(used[..., None], np.ldexp(block_top[..., None], shift - 3), np.float32(1))
    q = np.rint(groups * (np.float32(127) / top)[..., None]).astype(np.int32)
    q, shift = q * used[..., None, None], shift * used[..., None]
    sums16 = q.reshape(*q.shape[:2], 16, 16).sum(-1) << np.repeat(shift, 2, -1)
    records = np.zeros(q.shape[:2], RECORD)
    records["q"] = q.reshape(*q.shape[:2], 256)
    records["shift"] = shift
    records["sum32"] = sums32 = sums16[..., ::2] + sums16[..., 1::2]
    records["pairs16"] = sums16.reshape(*q.shape[:2], 4, 4)[..., [0, 2, 1, 3]].reshape(sums16.shape)
    records["pairs32"] = sums32.reshape(*q.shape[:2], 2, 4)[..., [0, 2, 1, 3]].reshape(sums32.shape)
    records["step"] = np.where(used, block_top / np.float32(1016), np.float32(0))
    return records


@dataclass
class Weights:
    """A random matrix of a type. values are f64 [out, in]; raw is u8 [out, row_bytes]."""

    type: TensorType
    raw: np.ndarray

    @classmethod
    def random(
        cls, type: TensorType, out_dim: int, in_dim: int, rng: np.random.Generator
    ) -> Weights:
        raw = rng.integers(0, 256, (out_dim, type.row_bytes(in_dim)), dtype=np.uint8)
        weights = cls(type, raw)
        shape = (*weights.blocks.shape[:2], 1)
        if type in FLOAT_TYPES:
            values = rng.standard_normal((out_dim, in_dim)).astype(np.float32)
            if type == TensorType.F16:
                values = values.astype(np.float16)
            packed = np.ascontiguousarray(values).view(np.uint8).reshape(out_dim, -1)
            if type == TensorType.BF16:
                packed = packed.reshape(out_dim, -1, 4)[..., 2:].reshape(out_dim, -1)
            weights.raw = np.ascontiguousarray(packed)
        elif type == TensorType.MXFP4:
            weights.blocks[..., :1] = rng.integers(110, 130, shape)
        else:
            weights.set_halves(STEP_AT.get(type, 0), rng.uniform(-2e-3, 2e-3, shape))
            if type in OFFSET_AT:
                weights.set_halves(OFFSET_AT[type], rng.uniform(-2e-3, 2e-3, shape))
        return weights

    @property
    def blocks(self) -> np.ndarray:
        return self.raw.reshape(len(self.raw), -1, self.type.block_bytes)

    @property
    def values(self) -> np.ndarray:
        return dequantize(self.raw, self.type).astype(np.float64)

    def halves(self, at: int) -> np.ndarray:
        raw = np.ascontiguousarray(self.blocks[..., at : at + 2])
        return raw.view("<f2")[..., 0].astype(np.float32)

    def set_halves(self, at: int, values: np.ndarray | float) -> None:
        halves = np.broadcast_to(np.asarray(values, "<f2"), (*self.blocks.shape[:2], 1))
        self.blocks[..., at : at + 2] = np.ascontiguousarray(halves).view(np.uint8)

    def integers(self, step: float, offset: float) -> np.ndarray:
        """Values with every step and offset replaced: whole numbers when they are 0 or 1."""
        copy = Weights(self.type, self.raw.copy())
        if self.type == TensorType.MXFP4:
            copy.blocks[..., 0] = 128
        else:
            copy.set_halves(STEP_AT.get(self.type, 0), step)
        if self.type in OFFSET_AT:
            copy.set_halves(OFFSET_AT[self.type], offset)
        return copy.values.astype(np.int64)

    def steps(self) -> np.ndarray:
        if self.type == TensorType.MXFP4:
            return np.ldexp(np.float32(1), self.blocks[..., 0].astype(np.int32) - 128)
        return self.halves(STEP_AT.get(self.type, 0))


def product(weights: Weights, records: np.ndarray) -> np.ndarray:
    """f32 [rows, out]: the definition of the integer products."""
    in_dim = weights.values.shape[1]
    num_blocks, num_rows = records.shape
    x = records["q"].astype(np.int64) << np.repeat(records["shift"].astype(np.int64), 32, -1)
    codes, has_offset = weights.integers(1, 0), weights.type in OFFSET_AT
    steps = weights.steps()
    offsets = weights.halves(OFFSET_AT[weights.type]) if has_offset else steps
    offset_codes = weights.integers(0, 1) if has_offset else codes
    group = weights.type.block_values
    y = np.zeros((num_rows, len(weights.raw)), np.float32)
    for b in range(num_blocks):
        s = np.zeros_like(y)
        for first in range(256 * b, min(256 * b + 256, in_dim), group):
            inputs = x[b][:, first % 256 : first % 256 + group]
            span = slice(first, first + group)
            dot = (inputs @ codes[:, span].T).astype(np.float32)
            step, offset = steps[:, first // group], offsets[:, first // group]
            s = dot * step if group == 256 else fma(step, dot, s)
            if has_offset:
                s = fma(offset, (inputs @ offset_codes[:, span].T).astype(np.float32), s)
        y = fma(s, records["step"][b][:, None], y)
    return y


def float_product(weights: Weights, x: np.ndarray) -> np.ndarray:
    """f32 [rows, out]: sixteen sums over k by fma, folded 16 -> 8 -> 4 -> 2 -> 1."""
    pad = [(0, 0), (0, -x.shape[1] % 16)]
    w = np.pad(weights.values.astype(np.float32), pad).reshape(len(weights.raw), -1, 16)
    x = np.pad(x, pad).reshape(len(x), -1, 16)
    sums = np.zeros((len(x), len(w), 16), np.float32)
    for k in range(w.shape[1]):
        sums = fma(w[None, :, k], x[:, None, k], sums)
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


def run_quantize(x: np.ndarray) -> np.ndarray:
    records = np.zeros((-(-x.shape[1] // 256), len(x)), RECORD)
    return run("quantize", (x.shape[1], ROWS), [header(len(x)), x, records])[2]


def run_linear(weights: Weights, x: np.ndarray, add_to: np.ndarray | None = None) -> np.ndarray:
    """The kernel's f32 [rows, out] for activations f32 [rows, in]."""
    (out_dim, row_bytes), (num_rows, in_dim) = weights.raw.shape, x.shape
    inputs = x if weights.type in FLOAT_TYPES else run_quantize(x)
    y = np.full((num_rows, out_dim), np.nan, np.float32) if add_to is None else add_to
    args = (in_dim, out_dim, ROWS, add_to is not None, row_bytes)
    arrays = [header(num_rows), weights.raw, inputs, y]
    return run(f"linear_{weights.type.name.lower()}", args, arrays)[3]
