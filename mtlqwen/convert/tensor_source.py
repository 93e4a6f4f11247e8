"""Where the rows of a tensor to be written come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..gguf import GGUF, TensorType
from ..quants import dequantize, quantize
from .safetensors import StoredTensor

_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class TensorSource:
    """A tensor of the new file, produced in runs of rows so that none is ever whole in memory."""

    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]  # [begin, end) -> f32 [end - begin, columns]
    stored_type: TensorType | None = None  # type of stored_rows
    stored_rows: np.ndarray | None = None  # u8 [rows, row_bytes], copied if the type is kept

    def encoded(self, type_: TensorType) -> Iterator[np.ndarray]:
        """The tensor's rows in a tensor type, u8 [n, row_bytes] at a time."""
        columns = self.shape[-1]
        num_rows = int(np.prod(self.shape[:-1]))
        step = max(1, _CHUNK_VALUES // columns)
        for begin in range(0, num_rows, step):
            end = min(begin + step, num_rows)
            if type_ is self.stored_type and self.stored_rows is not None:
                yield self.stored_rows[begin:end]
            else:
                yield quantize(self.rows(begin, end), type_)


def from_stored(
    tensor: StoredTensor,
    shape: tuple[int, ...],
    *,
    rows: np.ndarray | None = None,
    columns: np.ndarray | None = None,
    apply: Callable[[np.ndarray], np.ndarray] | None = None,
) -> TensorSource:
    """A checkpoint's tensor with rows and columns in a new order, then `apply` on the values."""
    matrix = StoredTensor(tensor.dtype, tensor.shape, tensor.data.reshape(-1, shape[-1]))

    def read(begin: int, end: int) -> np.ndarray:
        values = matrix.to_f32(slice(begin, end) if rows is None else rows[begin:end])
        values = values if columns is None else values[:, columns]
        return values if apply is None else apply(values)

    return TensorSource(shape, read)


def from_gguf(gguf: GGUF, name: str) -> TensorSource:
    """A tensor of another GGUF file."""
    info, raw = gguf.tensors[name], gguf.array(name)
    return TensorSource(
        info.shape, lambda begin, end: dequantize(raw[begin:end], info.type), info.type, raw
    )
