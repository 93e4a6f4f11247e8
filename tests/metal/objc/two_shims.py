"""The shim on the fake and the installed one as one: each object goes to the shim that made it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, c_void_p
from typing import Any


class TwoShims:
    """Stands for mtlqwen.device.lib: "metal" opens by one library, other devices by another."""

    def __init__(self, metal: CDLL, others: CDLL):
        self._metal = metal
        self._others = others
        self._makers: dict[int | None, CDLL] = {}  # by handle

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            first, last = arguments[0], getattr(arguments[-1], "_obj", None)
            if name == "mtlq_device_open":
                library = self._metal if first == b"metal" else self._others
            else:
                library = self._makers[getattr(first, "value", first)]
            result = getattr(library, name)(*arguments)
            if isinstance(last, c_void_p):
                self._makers[last.value] = library
            return result

        return call
