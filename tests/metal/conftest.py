"""Skips everything that compiles kernels when the emulator's compiler is missing."""

from __future__ import annotations

import pytest

from .emulator import build


@pytest.fixture(scope="session")
def emulator():
    """The emulator's build module."""
    reason = build.compiler_is_missing()
    if reason:
        pytest.skip(reason)
    return build
