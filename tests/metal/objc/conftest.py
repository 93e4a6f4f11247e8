"""Runs mtlqwen.device over the real metal shim and the fake Metal of this folder."""

from __future__ import annotations

import gc

import pytest

from . import build
from .fake_metal import FakeMetal


@pytest.fixture(scope="package")
def shim():
    """The shim on the fake, in place of the installed one."""
    reason = build.is_missing()
    if reason:
        pytest.skip(reason)
    gc.collect()  # objects of the other library are released by it
    with FakeMetal(build.library()) as fake:
        yield fake
        gc.collect()


@pytest.fixture
def fake(shim, tmp_path, monkeypatch):
    """The fake with its initial settings and an empty home; nothing may live on afterwards."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shim.reset()
    yield shim
    gc.collect()
    assert shim.live_objects() == ""
