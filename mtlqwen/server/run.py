"""Runs the application until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

GRACE_S = 5  # for answers that are under way when the server is told to stop
# The engine's thread gets the interpreter back this soon after a pass, instead of after 5 ms.
SWITCH_INTERVAL_S = 0.0005


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port`; port 0 takes a free one. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def run(app: FastAPI, listener: socket.socket, *, log_level: str = "warning") -> None:
    """Serves `app` on `listener`; a signal gives answers GRACE_S to end, a second one does not."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level == "info",
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn raises a signal again after shutdown, and would so keep the model from closing."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        stop: Callable[[], None] = self._stop
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
