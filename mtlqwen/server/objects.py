"""OpenAI's response objects, as dictionaries and as server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from typing import Any

from mtlqwen.generation import Completion
from mtlqwen.text import Delta

MEMBER_OF_KIND = {"content": "content", "reasoning": "reasoning_content"}
DONE = b"data: [DONE]\n\n"
# Made once: `json.dumps` with an option makes an encoder per call.
_as_json = json.JSONEncoder(ensure_ascii=False).encode


class Objects(ABC):
    """The objects of one answer. Events share their head: a token costs one small dump."""

    id_prefix: str
    object: str
    chunk_object: str

    def __init__(self, model: str):
        self._id = self.id_prefix + secrets.token_hex(12)
        self._model = model
        self._created_s = int(time.time())
        head = _as_json(self._head(self.chunk_object))
        self._event_head = f"data: {head[:-1]}, "

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created_s, "model": self._model}

    def whole(self, done: Completion) -> dict[str, Any]:
        """The answer in one piece."""
        choice = {"index": 0, **self._content(done), "logprobs": None}
        choice["finish_reason"] = done.finish_reason
        return {**self._head(self.object), "choices": [choice], "usage": _usage(done)}

    def opening(self) -> bytes:
        """What comes before the first text."""
        return b""

    def text(self, delta: Delta) -> bytes:
        """The event of a piece of text."""
        return self._choice_event(self._piece(delta), "null")

    def closing(self, done: Completion, include_usage: bool) -> bytes:
        """The events that end the stream."""
        events = self._choice_event(self._nothing, _as_json(done.finish_reason))
        if include_usage:
            events += self._event(f'"choices": [], "usage": {_as_json(_usage(done))}')
        return events + DONE

    def _choice_event(self, member: str, finish_reason: str) -> bytes:
        choice = f'{{"index": 0, {member}, "logprobs": null, "finish_reason": {finish_reason}}}'
        return self._event(f'"choices": [{choice}]')

    def _event(self, members: str) -> bytes:
        return f"{self._event_head}{members}}}\n\n".encode()

    _nothing: str

    @abstractmethod
    def _content(self, done: Completion) -> dict[str, Any]:
        """The members of a choice that hold the answer."""

    @abstractmethod
    def _piece(self, delta: Delta) -> str:
        """The member of a choice that holds a piece of text."""


class ChatObjects(Objects):
    """Of /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    _nothing = '"delta": {}'

    def opening(self) -> bytes:
        return self._choice_event('"delta": {"role": "assistant", "content": ""}', "null")

    def _content(self, done: Completion) -> dict[str, Any]:
        message = {"role": "assistant", "content": done.text}
        if done.reasoning:
            message["reasoning_content"] = done.reasoning
        return {"message": message}

    def _piece(self, delta: Delta) -> str:
        text = _as_json(delta.text)
        return f'"delta": {{"{MEMBER_OF_KIND[delta.kind]}": {text}}}'


class TextObjects(Objects):
    """Of /v1/completions."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"
    _nothing = '"text": ""'

    def _content(self, done: Completion) -> dict[str, Any]:
        return {"text": done.text}

    def _piece(self, delta: Delta) -> str:
        return f'"text": {_as_json(delta.text)}'


def _usage(done: Completion) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.generated_tokens,
        "total_tokens": done.prompt_tokens + done.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }
