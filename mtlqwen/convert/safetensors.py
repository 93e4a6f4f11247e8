"""Hugging Face directories: config.json and the tensors of their .safetensors files, mapped.

A .safetensors file is a u64 length, that many bytes of JSON (name -> dtype, shape, data_offsets
from the end of the JSON), then the data, row-major and little endian.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError

_MAX_HEADER_BYTES = 100 << 20
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or ModelError naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, not an object")
    return value


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a mapped file. BF16 is stored as the upper half of an F32."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray  # [shape], BF16 as u16

    def to_f32(self, selection: Any = ...) -> np.ndarray:
        """`data[selection]` as f32."""
        chosen = self.data[selection]
        if self.dtype == "BF16":
            return (chosen.astype(np.uint32) << 16).view(np.float32)
        return chosen.astype(np.float32)


class Checkpoint:
    """Config and tensors of a Hugging Face directory. ModelError for anything damaged."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.config = read_json(directory / "config.json")
        self.tensors: dict[str, StoredTensor] = {}
        for path in self._files():
            self._read_file(path)

    def _files(self) -> list[Path]:
        index = self.directory / "model.safetensors.index.json"
        if not index.exists():
            files = sorted(self.directory.glob("*.safetensors"))
            if not files:
                raise ModelError(
                    f"{self.directory} has no .safetensors file; download the whole model"
                )
            return files
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index} has no weight_map; download it again")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name:
                raise ModelError(f"{index} names the file {name!r}, which is outside its directory")
        return [self.directory / name for name in names]

    def _read_file(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot open {path}: {error}; download the whole model") from error
        header_bytes = int.from_bytes(data[:8], "little")
        if len(data) < 8 or header_bytes > min(_MAX_HEADER_BYTES, len(data) - 8):
            raise ModelError(
                f"{path}: the header says {header_bytes} bytes, the file has {len(data)};"
                " it is no .safetensors file or truncated: download it again"
            )
        try:
            header = json.loads(data[8 : 8 + header_bytes])
            entries = {
                str(name): (str(entry["dtype"]), entry["shape"], entry["data_offsets"])
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path}: damaged header ({error}); download it again") from error
        for name, entry in entries.items():
            if name in self.tensors:
                raise ModelError(f"{path}: tensor {name!r} is also in another file")
            self.tensors[name] = _stored_tensor(path, data, 8 + header_bytes, name, *entry)


def _stored_tensor(
    path: Path, data: mmap.mmap, base: int, name: str, dtype: str, shape: Any, offsets: Any
) -> StoredTensor:
    if dtype not in _DTYPES:
        raise ModelError(
            f"{path}: tensor {name!r} has dtype {dtype}; only F32, F16 and BF16 checkpoints can be"
            " converted: take the unquantised model"
        )
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [-1]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or len(offsets) != 2:
        raise ModelError(f"{path}: tensor {name!r} has shape {shape}, offsets {offsets}")
    begin, end = offsets
    size = prod(shape)
    if end - begin != size * _DTYPES[dtype].itemsize or base + end > len(data):
        raise ModelError(
            f"{path}: tensor {name!r} ({dtype} {shape}) should lie at bytes {begin} to {end} of"
            f" {len(data) - base}; the file is truncated or damaged: download it again"
        )
    array = np.frombuffer(data, _DTYPES[dtype], size, base + begin) if size else np.empty(0)
    return StoredTensor(dtype, tuple(shape), array.reshape(shape))
