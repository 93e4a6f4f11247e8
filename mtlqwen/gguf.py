"""GGUF models: where each tensor lies in the mapped files, and the metadata; writing them."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ModelError
from .gguf_format import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    VERSION,
    TensorInfo,
    TensorType,
    ValueType,
)
from .gguf_header import Header

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ARCHITECTURES", "GGUF", "GGUFWriter", "TensorInfo", "TensorType", "open_gguf"]

ARCHITECTURES = ("qwen35", "dflash")


class GGUF:
    """An open GGUF model: metadata, tensors, and the mapped files ("shards") that hold them."""

    def __init__(
        self,
        path: Path,
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
        shards: list[mmap.mmap],
        value_ranges: dict[str, tuple[int, int]],
    ):
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self.shards = shards
        self._value_ranges = value_ranges

    @property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(len(shard) for shard in self.shards)

    def array(self, name: str) -> np.ndarray:
        """The tensor's bytes where they are mapped, u8 [rows, row_bytes], read-only."""
        info = self.tensors[name]
        data = np.frombuffer(self.shards[info.shard], np.uint8, info.num_bytes, info.offset_bytes)
        return data.reshape(-1, info.type.row_bytes(info.shape[-1]))

    def encoded_value(self, key: str) -> bytes:
        """Type and value of a key as the file has them, to copy them to another file."""
        return self.shards[0][slice(*self._value_ranges[key])]

    def close(self) -> None:
        """Unmap the files; where arrays of them are still alive, that happens with the last one."""
        for shard in self.shards:
            with contextlib.suppress(BufferError):
                shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str]) -> GGUF:
    """Open a model, all of its files when `path` is the first of a split one.

    Raises ModelError for anything that cannot be read safely, and for other architectures.
    """
    path = Path(path)
    shards = [_map_file(path)]
    try:
        first = Header(shards[0], path, 0)
        first.read_metadata()
        _check_architecture(path, first.metadata)
        first.read_tensors()
        tensors = first.tensors
        for index, shard_path in _later_shards(path, first.metadata):
            shards.append(_map_file(shard_path))
            reader = Header(shards[-1], shard_path, index)
            reader.read_metadata()
            _check_shard(shard_path, reader.metadata, index, first.metadata["split.count"])
            reader.read_tensors()
            for name in tensors.keys() & reader.tensors.keys():
                raise ModelError(f"{shard_path}: tensor {name!r} is also in an earlier split file")
            tensors.update(reader.tensors)
        expected = _integer(path, first.metadata, "split.tensors.count", len(tensors))
        if len(shards) > 1 and expected != len(tensors):
            raise ModelError(
                f"{path}: the {len(shards)} split files hold {len(tensors)} tensors, but"
                f" split.tensors.count says {expected}; download them again"
            )
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return GGUF(path, first.metadata, tensors, shards, first.value_ranges)


def _map_file(path: Path) -> mmap.mmap:
    try:
        if path.is_dir():
            raise ModelError(
                f"{path} is a directory; make a GGUF of it with `mtlqwen convert {path} OUT.gguf`"
            )
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path} is not a regular file and cannot be mapped")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError(f"{path} is empty; download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot open model file {path}: {reason}") from error


def _check_architecture(path: Path, metadata: dict[str, Any]) -> None:
    name = metadata.get("general.architecture")
    found = f"the architecture {name!r}" if isinstance(name, str) else "no general.architecture"
    if isinstance(name, str) and name in ARCHITECTURES:
        return
    raise ModelError(
        f"{path} has {found}; MTLQwen runs the dense models of Qwen 3.5, 3.6 and 3.8 only"
        " ('qwen35') and their DFlash drafters ('dflash')"
    )


_SPLIT_NAME = re.compile(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)", re.DOTALL)


def _later_shards(path: Path, metadata: dict[str, Any]) -> Iterator[tuple[int, Path]]:
    """Index and path of each split file after the first."""
    count = _integer(path, metadata, "split.count", 1)
    if count in (0, 1):
        return
    number = _integer(path, metadata, "split.no", 0)
    match = _SPLIT_NAME.fullmatch(path.name)
    if not match or int(match[4]) != count or int(match[2]) != number + 1:
        raise ModelError(
            f"{path} is file {number} (from 0) of {count} of a split model, so its name must end in"
            f" -{number + 1:05d}-of-{count:05d}.gguf; give the files their published names"
        )
    if number != 0:
        first = f"{match[1]}{1:05d}{match[3]}"
        raise ModelError(f"{path} is not the first of the {count} split files; open {first}")
    for index in range(1, count):
        yield index, path.with_name(f"{match[1]}{index + 1:05d}{match[3]}")


def _integer(path: Path, metadata: dict[str, Any], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelError(f"{path}: {key} is {value!r}, not a number; download the file again")
    return value


def _check_shard(path: Path, metadata: dict[str, Any], index: int, count: int) -> None:
    found = tuple(_integer(path, metadata, key, 0) for key in ("split.no", "split.count"))
    if found != (index, count):
        raise ModelError(
            f"{path} should be split file {index} of {count}, but its metadata says"
            f" {found[0]} of {found[1]}; download the files again"
        )


class GGUFWriter:
    """Writes a model tensor by tensor; the file appears under its name only when it is whole.

    `metadata` values are encoded by their Python or NumPy type (int is u32, float f32; NumPy
    scalars and arrays say more); bytes are a value that is already encoded. `tensors` gives type
    and row-major shape of each tensor, in file order. Leaving the `with` block by an exception
    leaves no file. ModelError with the numbers if the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, Any],
        tensors: Mapping[str, tuple[TensorType, tuple[int, ...]]],
    ):
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        self._sizes = {
            name: prod(shape[:-1]) * type_.row_bytes(shape[-1])
            for name, (type_, shape) in tensors.items()
        }
        self._header = _encode_header(metadata, tensors, self._sizes)
        self.num_bytes = len(self._header) + sum(map(_aligned, self._sizes.values()))
        self._pending = list(self._sizes)[::-1]
        self._written = 0  # bytes of the current tensor

    def write(self, name: str, rows: np.ndarray) -> None:
        """Append rows (u8 [n, row_bytes]) of a tensor; tensors come in the order of the header."""
        if not self._pending or self._pending[-1] != name:
            expected = self._pending[-1] if self._pending else "nothing"
            raise ValueError(f"tensor {name!r} is out of order; {expected} comes next")
        self._append(np.ascontiguousarray(rows).data)
        self._written += rows.nbytes
        size = self._sizes[name]
        if self._written > size:
            raise ValueError(f"tensor {name!r} has {size} bytes, not {self._written}")
        if self._written == size:
            self._append(bytes(_aligned(size) - size))
            self._pending.pop()
            self._written = 0

    def __enter__(self) -> Self:
        # A rename would put the file in the place of a device or a pipe.
        if self.path.exists() and not self.path.is_file():
            raise ModelError(f"cannot write {self.path}: it is no regular file; choose another")
        try:
            self._file = open(self._temporary, "xb")
            self._file.write(self._header)
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise self._failure(error) from error
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        try:
            with self._file:
                if exc_type is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if exc_type is None:
                if self._pending:
                    raise ValueError(f"tensor {self._pending[-1]!r} was not written")
                os.replace(self._temporary, self.path)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._temporary.unlink(missing_ok=True)

    def _append(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> ModelError:
        try:
            free = f"{shutil.disk_usage(self.path.parent).free} bytes are free there"
        except OSError:
            free = "its directory cannot be read"
        return ModelError(
            f"cannot write {self.path}: {error.strerror}; it takes {self.num_bytes} bytes, {free}"
        )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _encode_header(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[TensorType, tuple[int, ...]]],
    sizes: Mapping[str, int],
) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_encode_string(key), _encode_value(value)]
    offset = 0
    for name, (type_, shape) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        parts += [_encode_string(name), dims, struct.pack("<IQ", type_, offset)]
        offset += _aligned(sizes[name])
    header = b"".join(parts)
    return header + bytes(_aligned(len(header)) - len(header))


def _encode_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode_value(value: Any) -> bytes:
    """Type and value as a file has them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _encode_string(value)
    if isinstance(value, np.ndarray | np.generic):
        type_ = next(t for t, dtype in SCALARS.items() if dtype == value.dtype)
        prefix = struct.pack("<I", type_)
        if isinstance(value, np.ndarray):
            prefix = struct.pack("<IIQ", ValueType.ARRAY, type_, len(value))
        return prefix + value.tobytes()
    if isinstance(value, Sequence):
        prefix = struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(value))
        return prefix + b"".join(map(_encode_string, value))
    dtype = {bool: np.bool_, int: np.uint32, float: np.float32}[type(value)]
    return _encode_value(dtype(value))
