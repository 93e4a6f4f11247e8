"""What a GGUF file is made of: types of tensors and of metadata values.

Format: little endian; magic "GGUF", version u32, tensor count u64, key count u64; the keys (name,
type, value); the tensors (name, dimensions innermost first, type, offset); then the aligned data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32


class TensorType(IntEnum):
    """Tensor types that MTLQwen reads, numbered as in GGUF files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39

    @property
    def block_values(self) -> int:
        """Values that one block holds."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        return _BLOCKS[self][1]

    def row_bytes(self, num_values: int) -> int:
        """Bytes of a row of `num_values`; ValueError if blocks don't divide it."""
        num_blocks, rest = divmod(num_values, self.block_values)
        if rest:
            raise ValueError(
                f"{self.name} rows are multiples of {self.block_values} values, not {num_values}"
            )
        return num_blocks * self.block_bytes


_BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q2_K: (256, 84),
    TensorType.Q3_K: (256, 110),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
    TensorType.IQ4_NL: (32, 18),
    TensorType.IQ4_XS: (256, 136),
    TensorType.BF16: (1, 2),
    TensorType.MXFP4: (32, 17),
}

# Types that other programs write, to name them in the refusal.
FOREIGN_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


class ValueType(IntEnum):
    """Types of metadata values, numbered as in GGUF files."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALARS: dict[ValueType, np.dtype[Any]] = {
    ValueType.U8: np.dtype("<u1"),
    ValueType.I8: np.dtype("<i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major: (out, in) for a matrix."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    shard: int
    offset_bytes: int  # from the start of the shard's file
    num_bytes: int
