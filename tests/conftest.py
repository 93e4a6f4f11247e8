"""Fixtures for every area."""

import signal
from collections.abc import Callable, Iterator
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


@pytest.fixture
def heed_signals() -> Callable[[], None]:
    """A `preexec_fn` for programs that a test sends signals: a program starts deaf to those that
    its parent ignores, as it does behind nohup, or behind & of a shell without jobs.
    """

    def heed() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    return heed
