"""The header of one GGUF file, read without trusting it.

Every count, length and offset is checked against the file before it is used; damage raises
ModelError with the file, the byte and the numbers.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, overload

import numpy as np

from .errors import ModelError
from .gguf_format import (
    DEFAULT_ALIGNMENT,
    FOREIGN_TYPES,
    MAGIC,
    SCALARS,
    TensorInfo,
    TensorType,
    ValueType,
)

# Far above any real file (27B: 866 tensors, 40 keys, 248,320 tokens): a hostile count stops early.
MAX_TENSORS = MAX_KEYS = 1 << 16
MAX_ARRAY_ITEMS = 1 << 24
MAX_NAME_BYTES = 1 << 16
MAX_DIMENSIONS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class StringArray(Sequence[str]):
    """A metadata array of strings, decoded when read: a vocabulary costs nothing until then."""

    def __init__(self, shard: mmap.mmap, offsets: np.ndarray, label: str):
        self._shard = shard
        self._offsets = offsets  # i64[n + 1], each at the u64 length before a string's bytes
        self._label = label

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        begin, end = self._offsets[position : position + 2].tolist()
        try:
            return self._shard[begin + 8 : end].decode()
        except UnicodeDecodeError as error:
            raise self._bad_text(position) from error

    def __iter__(self) -> Iterator[str]:
        base = int(self._offsets[0])
        data = self._shard[base : int(self._offsets[-1])]
        for i, (begin, end) in enumerate(pairwise((self._offsets - base).tolist())):
            try:
                yield data[begin + 8 : end].decode()
            except UnicodeDecodeError as error:
                raise self._bad_text(i) from error

    def _bad_text(self, index: int) -> ModelError:
        return ModelError(
            f"{self._label}[{index}] is not valid UTF-8;"
            " the file is damaged: download or convert it again"
        )


class Header:
    """Parses the header of one file: first read_metadata(), then read_tensors()."""

    def __init__(self, shard: mmap.mmap, path: Path, index: int):
        self._shard = shard
        self._size = len(shard)
        self._path = path
        self._index = index
        self._position = 0
        self.metadata: dict[str, Any] = {}
        self.value_ranges: dict[str, tuple[int, int]] = {}
        self.tensors: dict[str, TensorInfo] = {}

    def read_metadata(self) -> None:
        self._read_magic()
        version = self._u32("the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = f"big-endian version {swapped}" if swapped in (2, 3) else f"version {version}"
            raise self._error(f"GGUF {kind} is not supported, only little-endian versions 2 and 3")
        self._num_tensors = self._count("tensor", MAX_TENSORS, min_bytes=32)
        num_keys = self._count("metadata key", MAX_KEYS, min_bytes=13)
        for i in range(num_keys):
            key = self._string(f"the name of key {i}", MAX_NAME_BYTES)
            if key in self.metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            begin = self._position
            self.metadata[key] = self._value(key)
            self.value_ranges[key] = begin, self._position

    def read_tensors(self) -> None:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment not in [1 << bit for bit in range(3, 17)]:
            raise self._error(
                f"general.alignment is {alignment!r}, not a power of two between 8 and 65536"
            )
        headers = [self._tensor_header(i) for i in range(self._num_tensors)]
        data_start = -(-self._position // alignment) * alignment
        for name, type_, shape, offset in headers:
            self._place(name, type_, shape, offset, data_start, alignment)
        placed = sorted(self.tensors.values(), key=lambda info: info.offset_bytes)
        for before, after in pairwise(placed):
            if before.offset_bytes + before.num_bytes > after.offset_bytes:
                raise self._error(f"tensors {before.name!r} and {after.name!r} overlap")

    def _read_magic(self) -> None:
        magic = self._shard[:4]
        if magic == MAGIC:
            self._position = 4
            return
        hint = "a GGUF file starts with b'GGUF'"
        if self._shard[:8] == b"version ":
            hint = "it is a Git LFS pointer: fetch the file itself with `git lfs pull`"
        elif magic[:1] == b"<":
            hint = "it is a web page: download the file itself"
        raise self._error(f"not a GGUF file (starts with {magic!r}); {hint}")

    def _tensor_header(self, index: int) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._string(f"the name of tensor {index}", MAX_NAME_BYTES)
        num_dims = self._u32(f"the number of dimensions of {name!r}")
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            raise self._error(f"tensor {name!r} has {num_dims} dimensions, not 1 to 4")
        dims = [self._u64(f"a dimension of {name!r}") for _ in range(num_dims)]
        type_id = self._u32(f"the type of {name!r}")
        offset = self._u64(f"the offset of {name!r}")
        try:
            type_ = TensorType(type_id)
        except ValueError:
            supported = " ".join(t.name for t in TensorType)
            raise ModelError(
                f"{self._path}: tensor {name!r} has the type"
                f" {FOREIGN_TYPES.get(type_id, 'unknown')} ({type_id}), which MTLQwen does not"
                f" read; use a file quantised as one of {supported} (Q4_K_M and Q8_0 files are)"
            ) from None
        return name, type_, tuple(reversed(dims)), offset

    def _place(
        self,
        name: str,
        type_: TensorType,
        shape: tuple[int, ...],
        offset: int,
        data_start: int,
        alignment: int,
    ) -> None:
        where = f"tensor {name!r} ({type_.name} {list(shape)})"
        if name in self.tensors:
            raise self._error(f"tensor {name!r} appears twice")
        if 0 in shape:
            raise self._error(f"{where} is empty")
        if offset % alignment:
            raise self._error(f"{where} has offset {offset}, not a multiple of {alignment}")
        try:
            num_bytes = prod(shape[:-1]) * type_.row_bytes(shape[-1])
        except ValueError as error:
            raise self._error(f"{where}: {error}") from None
        end = data_start + offset + num_bytes
        if end > self._size:
            raise self._error(
                f"{where} ends at byte {end}, but the file has {self._size};"
                " it is truncated: download it again"
            )
        self.tensors[name] = TensorInfo(
            name, type_, shape, self._index, data_start + offset, num_bytes
        )

    def _value(self, key: str) -> Any:
        type_ = self._value_type(f"the type of {key!r}")
        if type_ is ValueType.STRING:
            return self._string(f"the value of {key!r}", self._size)
        if type_ is not ValueType.ARRAY:
            return self._items(key, type_, 1)[0].item()
        type_ = self._value_type(f"the item type of {key!r}")
        if type_ is ValueType.ARRAY:
            raise self._error(f"{key!r} is an array of arrays, which no supported model has")
        min_bytes = 8 if type_ is ValueType.STRING else SCALARS[type_].itemsize
        count = self._count(f"item of {key!r}", MAX_ARRAY_ITEMS, min_bytes)
        return (
            self._strings(key, count)
            if type_ is ValueType.STRING
            else self._items(key, type_, count)
        )

    def _items(self, key: str, type_: ValueType, count: int) -> np.ndarray:
        dtype = SCALARS[type_]
        raw = self._take(count * dtype.itemsize, f"the value of {key!r}")
        if type_ is ValueType.BOOL and raw.strip(b"\0\1"):
            raise self._error(f"{key!r} has a truth value that is neither 0 nor 1")
        return np.frombuffer(raw, dtype)

    def _strings(self, key: str, count: int) -> StringArray:
        offsets = [self._position]
        unpack, position = _U64.unpack_from, self._position
        with memoryview(self._shard) as data:
            try:
                for _ in range(count):
                    position += 8 + unpack(data, position)[0]
                    offsets.append(position)
            except (struct.error, OverflowError):
                position = self._size + 1
        if position > self._size:
            raise self._truncated(f"a string of {key!r}")
        self._position = position
        return StringArray(self._shard, np.array(offsets, np.int64), f"{self._path}: {key}")

    def _value_type(self, what: str) -> ValueType:
        number = self._u32(what)
        try:
            return ValueType(number)
        except ValueError:
            raise self._error(f"{what} is {number}, which GGUF does not define") from None

    def _count(self, noun: str, limit: int, min_bytes: int) -> int:
        """A count of things that take at least `min_bytes` each, checked before it is believed."""
        count = self._u64(f"the {noun} count")
        left = self._size - self._position
        if count > limit or count * min_bytes > left:
            raise self._error(
                f"the {noun} count is {count}, but {left} bytes are left in the file and"
                f" {limit} is the limit; the file is damaged: download or convert it again"
            )
        return count

    def _string(self, what: str, max_bytes: int) -> str:
        num_bytes = self._u64(f"the length of {what}")
        if num_bytes > max_bytes:
            raise self._error(f"{what} is {num_bytes} bytes long, more than {max_bytes}")
        raw = self._take(num_bytes, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not valid UTF-8: {raw[:40]!r}") from error

    def _u32(self, what: str) -> int:
        return _U32.unpack(self._take(4, what))[0]

    def _u64(self, what: str) -> int:
        return _U64.unpack(self._take(8, what))[0]

    def _take(self, num_bytes: int, what: str) -> bytes:
        end = self._position + num_bytes
        if end > self._size:
            raise self._truncated(what)
        raw = self._shard[self._position : end]
        self._position = end
        return raw

    def _truncated(self, what: str) -> ModelError:
        return self._error(
            f"{what} runs past the end of the file ({self._size} bytes);"
            " the file is truncated or damaged: download or convert it again"
        )

    def _error(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: byte {self._position}: {problem}")
