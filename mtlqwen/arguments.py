"""What a caller may pass, and how to say that something is not that."""

from __future__ import annotations

import os
from reprlib import Repr
from typing import Any

_short = Repr()
_short.maxstring = _short.maxother = 60


def is_integer(value: object, low: int, high: int | None = None) -> bool:
    """Whether `value` is an int, which True and False are not, from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return low <= value and (high is None or value <= high)


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether `value` is an int or float, which NaN is not, from `low` to `high`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_path(value: object) -> bool:
    """Whether `value` names a file; "", which `Path` takes for the current directory, does not."""
    return isinstance(value, str | os.PathLike) and value != ""


def an_integer(low: int, high: int | None = None) -> str:
    """What `is_integer` wants, for `misfit`."""
    return f"an integer from {low} to {high}" if high is not None else f"an integer from {low} up"


def misfit(name: str, value: object, wanted: str) -> str:
    """That `value`, which may be long and is shown in short, is not what was wanted: one line."""
    shown = " ".join(_short.repr(value).split())
    return f"{name} is {shown}; it must be {wanted}"
