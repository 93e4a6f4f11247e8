"""OpenAI's error object, for every way in which a request can fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from mtlqwen.errors import MtlqError, RequestError

from .schema import NOT_SUPPORTED


class ApiError(Exception):
    """An answer that is an error: HTTP status and the members of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """The answer to a request that `error` ended."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, RequestError):
            return cls(400, str(error), param=error.param, code=error.code or "invalid_value")
        if isinstance(error, MtlqError):
            return cls(500, str(error), code="engine_error")
        return cls(500, f"{type(error).__name__}: {error}", code="internal_error")

    @classmethod
    def of_validation(cls, error: ValidationError) -> ApiError:
        """The first fault that the schema found, in words a client's user understands."""
        # Of a union every branch reports; the one that got furthest is the one that was meant.
        faults = error.errors(include_url=False)
        fault = max(faults, key=lambda fault: (fault["type"] == "too_long", len(fault["loc"])))
        param = _path(fault["loc"])
        if fault["type"] == "json_invalid":
            return cls(400, f"the body is not JSON: {fault['msg']}", code="invalid_json")
        if fault["type"] == "extra_forbidden":
            if str(fault["loc"][-1]) in NOT_SUPPORTED:
                return cls(
                    400,
                    f"{param} is not supported by this server",
                    param=param,
                    code="unsupported_parameter",
                )
            return cls(400, f"unknown parameter: {param}", param=param, code="unknown_parameter")
        if fault["type"] == "missing":
            return cls(400, f"{param} is required", param=param, code="missing_required_parameter")
        if fault["type"] == "value_error":
            return cls.of(fault["ctx"]["error"])
        code = "unsupported_value" if fault["type"] == "literal_error" else "invalid_value"
        return cls(400, f"{param or 'the body'}: {fault['msg']}", param=param or None, code=code)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": str(self),
                "type": "server_error" if self.status >= 500 else "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)

    def event(self) -> bytes:
        """The error as a server-sent event, for a stream that has begun."""
        return b"data: " + json.dumps(self.body(), ensure_ascii=False).encode() + b"\n\n"


def install_handlers(app: FastAPI) -> None:
    """Every error that leaves a route becomes an error object."""

    @app.exception_handler(ApiError)
    @app.exception_handler(MtlqError)
    async def known(request: Request, error: Exception) -> JSONResponse:
        return ApiError.of(error).response()

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(ClientDisconnect)
    async def departed(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # in the middle of its body: nobody reads this

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        return ApiError.of(error).response()


BRANCHES = frozenset(("str", "int", "float", "bool", "dict", "list"))


def _path(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "content", "str") -> messages[0].content, without the branches of unions."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in BRANCHES:
            path += f".{part}"
    return path.lstrip(".")
