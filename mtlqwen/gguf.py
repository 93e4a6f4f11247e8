"""GGUF models: where each tensor lies in the mapped files, and the metadata."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ModelError
from .gguf_format import TensorInfo, TensorType
from .gguf_header import Header

__all__ = ["ARCHITECTURES", "GGUF", "TensorInfo", "TensorType", "open_gguf"]

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
            try:
                shard.close()
            except BufferError:
                pass

    def __enter__(self) -> GGUF:
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
