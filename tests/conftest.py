"""Fixtures for every area."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from mtlqwen.device import Device

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def device() -> Iterator["Device"]:
    """The cpu device with two workers."""
    from mtlqwen.device import Device

    with Device.open(num_threads=2) as device:
        yield device
