"""Exceptions that MTLQwen raises for its users: bad files, bad requests, device failures."""

from __future__ import annotations


class MtlqError(Exception):
    """Base of every error that MTLQwen raises on purpose."""


class ModelError(MtlqError):
    """A model file that is damaged, incomplete, or not one that MTLQwen runs."""


class RequestError(MtlqError, ValueError):
    """A request that cannot be served as asked.

    `param` names the offending parameter; `code` is a stable word for programs,
    for example "context_length_exceeded".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param = param
        self.code = code


def context_exceeded(limit: int) -> RequestError:
    """That a prompt has more than `limit` tokens, however many, with one more to generate."""
    return RequestError(
        f"the prompt has more than {limit} tokens, which with one to generate exceeds the "
        f"{limit + 1} that fit; shorten the prompt, or raise the context or the K/V memory",
        param="prompt",
        code="context_length_exceeded",
    )


class DeviceError(MtlqError):
    """A call into the shim failed; `status` is its status code."""

    def __init__(self, message: str, *, status: int = 0):
        super().__init__(message)
        self.status = status


class OutOfMemory(DeviceError):
    """The device has no memory left for a buffer or heap."""


class LimitError(DeviceError):
    """A limit of the device or the operating system was reached."""
