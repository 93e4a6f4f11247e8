"""Runs the application until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

GRACE_S = 5  # for answers that are under way when the server is told to stop
# Longer than clients keep idle connections, 5 s in httpx: a request must not meet one being closed.
IDLE_CONNECTION_S = 75
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


def run(
    app: FastAPI,
    listener: socket.socket,
    end_answers: Callable[[], None],
    *,
    log_level: str = "warning",
) -> None:
    """Serves `app` on `listener` until a signal; then answers that are under way have GRACE_S.

    `end_answers` makes the answers end that are left after that, or at a second signal.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Else full collections, which hold the interpreter, go through all that loading left: 50 ms.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level == "info",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=IDLE_CONNECTION_S,
    )
    _Server(config, end_answers).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends answers at a signal; uvicorn would cancel them, and then raise the signal again."""

    def __init__(self, config: uvicorn.Config, end_answers: Callable[[], None]):
        super().__init__(config)
        self._end_answers = end_answers

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        stops = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's stays
            stops.append(signal.SIGHUP)
        for number in stops:
            loop.add_signal_handler(number, self._stop, loop)
        yield

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        delay_s = 0 if self.should_exit else GRACE_S
        self.should_exit = True
        # In a thread: it waits for the pass that is running.
        loop.call_later(delay_s, loop.run_in_executor, None, self._end_answers)
