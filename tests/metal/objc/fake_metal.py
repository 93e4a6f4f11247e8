"""The settings, counts and compiler of the fake Metal."""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    CFUNCTYPE,
    c_char_p,
    c_int,
    c_long,
    c_size_t,
    c_void_p,
    create_string_buffer,
    memmove,
)
from pathlib import Path

from mtlqwen import abi, device

from ..emulator import build as emulator
from ..emulator.translate import TranslationError, preprocess, translate

_COMPILER = CFUNCTYPE(c_int, c_char_p, c_char_p, c_void_p, c_size_t)


class FakeMetal:
    """Takes the place of the shim in mtlqwen.device while its context is open."""

    def __init__(self, path: Path):
        self._lib = abi.load(path)
        self._lib.fake_get.restype = c_long
        self._lib.fake_set.argtypes = (c_char_p, c_long)
        self._lib.objc_live_objects.argtypes = (c_char_p, c_size_t)
        self._lib.objc_missing_method.argtypes = (c_char_p, c_char_p)
        self._lib.objc_missing_method.restype = c_char_p
        self._compiler = _COMPILER(compile_for_fake)
        self._lib.fake_set_compiler(self._compiler)

    def __enter__(self) -> FakeMetal:
        self._installed = device.lib
        device.lib = self._lib
        return self

    def __exit__(self, *exception: object) -> None:
        device.lib = self._installed

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """The installed shim, for a while."""
        gc.collect()
        device.lib = self._installed
        yield
        gc.collect()
        device.lib = self._lib

    def set(self, **settings: int) -> None:
        """Settings of fake/control.m."""
        for name, value in settings.items():
            self._lib.fake_set(name.encode(), value)

    def get(self, name: str) -> int:
        return int(self._lib.fake_get(name.encode()))

    def reset(self) -> None:
        self._lib.fake_reset()

    def catch_faults(self) -> None:
        """Lets a touch of an unmapped tile end the process with a message."""
        self._lib.fake_catch_faults()

    def live_objects(self) -> str:
        """'Class count' of every class that has live objects."""
        text = create_string_buffer(4096)
        self._lib.objc_live_objects(text, len(text))
        return text.value.decode()

    def missing_method(self, class_name: str, protocol: str) -> str | None:
        """A required method that the class lacks, "" if none, None if either is unknown."""
        name = self._lib.objc_missing_method(class_name.encode(), protocol.encode())
        return name.decode() if name is not None else None


def compile_for_fake(source: bytes, kernels: bytes, answer: int, num_bytes: int) -> int:
    """The callback of fake_compile(): see fake/fake.h."""
    status = 0
    try:
        text = _compile(source.decode(), tuple(kernels.decode().split()))
    except (TranslationError, RuntimeError) as error:
        text, status = str(error), 1
    encoded = text.encode()[: num_bytes - 1] + b"\0"
    memmove(answer, encoded, len(encoded))
    return status


@functools.cache
def _compile(source: str, kernels: tuple[str, ...]) -> str:
    folder = emulator.CACHE / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.metal"
    path.write_text(source)
    if kernels:
        return str(emulator.library(path, "plain", frozenset(kernels)))
    names = translate(preprocess(path, emulator.COMPILER, ("UNROLL=",)), "metal_cpu.h").kernels
    if not names:
        raise TranslationError("error: the source has no kernel")
    return " ".join(names)
