"""The HTTP answer that a generation becomes, in one piece or as server-sent events."""

from __future__ import annotations

import asyncio

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mtlqwen.generation import AsyncStream, Completion
from mtlqwen.text import Delta

from .errors import ApiError
from .objects import Objects
from .schema import GenerationRequest

KEEP_ALIVE_S = 15.0  # clients and proxies commonly give up after 30 to 60 silent seconds
KEEP_ALIVE = b": keep-alive\n\n"
EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply(Response):
    """Answers one request from its stream; a client that leaves ends the generation at once."""

    background = None  # FastAPI asks every response for it

    def __init__(self, stream: AsyncStream, objects: Objects, request: GenerationRequest):
        self._stream = stream
        self._objects = objects
        self._streams = request.stream
        options = request.stream_options
        self._include_usage = options is not None and options.include_usage
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        departure = asyncio.ensure_future(_departure(receive))
        departure.add_done_callback(lambda _: self._stream.close())
        try:
            await self._answer(scope, receive, send)
        finally:
            departure.cancel()
            self._stream.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._streams:
                await self._send_events(send)
            else:
                whole = self._objects.whole(_ended(await self._stream.completion()))
                await JSONResponse(whole)(scope, receive, send)
        except Exception as cause:
            error = ApiError.of(cause)
            if not self._started:
                await error.response()(scope, receive, send)
            else:
                await self._send(send, error.event())
                await self._end(send)

    async def _send_events(self, send: Send) -> None:
        # The status waits for the first token, as long as clients can bear: it may yet be an error.
        deltas = None
        while deltas is None:
            try:
                deltas = await asyncio.wait_for(self._stream.deltas(), KEEP_ALIVE_S)
            except asyncio.TimeoutError:
                await self._send(send, KEEP_ALIVE)
        events = self._objects.opening()
        while deltas:
            events += b"".join(map(self._objects.text, _merged(deltas)))
            await self._send(send, events)
            events = b""
            deltas = await self._stream.deltas()
        done = _ended(await self._stream.completion())
        await self._send(send, events + self._objects.closing(done, self._include_usage))
        await self._end(send)

    async def _send(self, send: Send, body: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _end(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _departure(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one: a reader that fell behind catches up in one event."""
    merged = deltas[:1]
    for delta in deltas[1:]:
        if delta.kind == merged[-1].kind:
            merged[-1] = Delta(delta.kind, merged[-1].text + delta.text)
        else:
            merged.append(delta)
    return merged


def _ended(done: Completion) -> Completion:
    if done.finish_reason == "cancelled":
        raise ApiError(503, "the server is shutting down", code="server_stopping")
    return done
