"""The routes of the server: who may ask, what is asked, and which answer goes back."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from mtlqwen.errors import MtlqError
from mtlqwen.llm import LLM
from mtlqwen.sampling import SamplingParams

from .errors import ApiError, install_handlers
from .objects import ChatObjects, TextObjects
from .reply import Reply
from .schema import ChatRequest, CompletionRequest, GenerationRequest

MAX_BODY_BYTES = 16 * 2**20

Body = TypeVar("Body", bound=GenerationRequest)


def create_app(llm: LLM, *, api_key: str | None = None, aliases: Sequence[str] = ()) -> FastAPI:
    """The application that answers with `llm`.

    api_key: what a client must send as bearer token or `x-api-key`; None lets everybody in.
    aliases: further names by which clients may ask for the model.
    """
    if api_key == "":  # a variable that is not set, in a script: who sends no key would have it
        raise MtlqError("the API key is empty; give one, or none to let everybody in")
    app = FastAPI(title="MTLQwen", openapi_url=None)
    install_handlers(app)
    app.include_router(_Routes(llm, aliases).router(api_key))

    @app.get("/health")
    async def health() -> Response:
        if llm.engine.alive:
            return JSONResponse({"status": "ok"})
        return ApiError(503, "the engine has stopped", code="engine_stopped").response()

    return app


class _Routes:
    """/v1: what OpenAI's clients call."""

    def __init__(self, llm: LLM, aliases: Sequence[str]):
        self._llm = llm
        self._created_s = int(time.time())
        self._models = {name: self._model(name) for name in (llm.name, *aliases)}

    def router(self, api_key: str | None) -> APIRouter:
        guards = [] if api_key is None else [Depends(_key_check(api_key))]
        router = APIRouter(prefix="/v1", dependencies=guards)
        router.get("/models")(self.list_models)
        router.get("/models/{name:path}")(self.get_model)
        router.post("/chat/completions")(self.chat_completions)
        router.post("/completions")(self.completions)
        return router

    async def list_models(self) -> Response:
        return JSONResponse({"object": "list", "data": list(self._models.values())})

    async def get_model(self, name: str) -> Response:
        return JSONResponse(self._models[self._served(name)])

    async def chat_completions(self, request: Request) -> Response:
        body, params = await _read(request, ChatRequest)
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        return await self._reply(
            body, params, ChatObjects, messages, template_kwargs=body.chat_template_kwargs
        )

    async def completions(self, request: Request) -> Response:
        body, params = await _read(request, CompletionRequest)
        return await self._reply(body, params, TextObjects, body.prompt, raw=True)

    async def _reply(
        self,
        body: GenerationRequest,
        params: SamplingParams,
        objects: type[ChatObjects] | type[TextObjects],
        prompt: Any,
        **prompt_kwargs: Any,
    ) -> Response:
        model = self._served(body.model)
        if not self._llm.engine.alive:
            raise ApiError(503, "the engine has stopped", code="engine_stopped")
        stream = await self._llm.astream(prompt, params, **prompt_kwargs)
        return Reply(stream, objects(model), body)

    def _served(self, name: str | None) -> str:
        if name is not None and name not in self._models:
            served = ", ".join(self._models)
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {served}",
                param="model",
                code="model_not_found",
            )
        return name or self._llm.name

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "mtlqwen",
            # Clients look for the limit under either name.
            "context_length": self._llm.max_context,
            "max_model_len": self._llm.max_context,
        }


async def _read(request: Request, schema: type[Body]) -> tuple[Body, SamplingParams]:
    """The body, checked against `schema`, and how it wants its tokens chosen; a web page may send
    other media types without being asked.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(415, "send the body with Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(
                413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large"
            )
    try:
        # A long one takes a second: not on the loop.
        return await asyncio.to_thread(_checked, schema, body)
    except ValidationError as error:
        raise ApiError.of_validation(error) from error


def _checked(schema: type[Body], body: bytearray) -> tuple[Body, SamplingParams]:
    request = schema.model_validate_json(body)
    return request, request.sampling_params()


def _key_check(api_key: str) -> Any:
    expected = api_key.encode(errors="surrogateescape")  # the bytes of the command line

    async def check(request: Request) -> None:
        # Header bytes come decoded as Latin-1.
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("latin-1"), expected):
            raise ApiError(
                401,
                "wrong or missing API key; send Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check
