"""What a client may send: every parameter that has an effect here, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mtlqwen.errors import RequestError
from mtlqwen.sampling import SamplingParams

# Parameters of OpenAI's API that this server has no use for: named as such in the answer.
NOT_SUPPORTED = frozenset(
    (
        "annotations",
        "audio",
        "function_call",
        "functions",
        "metadata",
        "modalities",
        "name",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "reasoning_effort",
        "refusal",
        "response_format",
        "safety_identifier",
        "service_tier",
        "store",
        "suffix",
        "tool_call_id",
        "tool_calls",
        "tool_choice",
        "tools",
        "top_logprobs",
        "user",
        "verbosity",
        "web_search_options",
    )
)
SAMPLING_PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "ignore_eos",
)
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions

MAX_MESSAGES = 16_384  # and text parts of one
MAX_TOKENS = 1 << 20  # of a prompt that is token ids

Number = Annotated[float, Field(allow_inf_nan=False)]
# One fault is told; without fail_fast a million would be collected, a kilobyte each.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True)]


class Schema(BaseModel):
    """Refuses what it does not know; `null` is the same as leaving a known parameter out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = NOT_SUPPORTED | cls.model_fields.keys()
        kept = {key: value for key, value in data.items() if key in known and value is not None}
        unknown = [key for key in data if key not in known]
        return kept | {key: data[key] for key in unknown[:1]}  # one is enough to refuse


class StreamOptions(Schema):
    include_usage: bool = False


class GenerationRequest(Schema):
    """What chat and plain completions have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    logprobs: Literal[False] = False
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Number = 1.0
    top_k: int = 0
    top_p: Number = 1.0
    min_p: Number = 0.0
    presence_penalty: Number = 0.0
    frequency_penalty: Number = 0.0
    repetition_penalty: Number = 1.0
    logit_bias: dict[str, Any] = {}
    seed: int | None = None
    stop: str | Texts = []
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options is only allowed with stream: true", param="stream_options"
            )
        return self

    def sampling_params(self) -> SamplingParams:
        """Raises RequestError, which names the parameter, for a value out of range."""
        return SamplingParams(**{name: getattr(self, name) for name in SAMPLING_PARAMETERS})


class TextPart(Schema):
    type: Literal["text"]
    text: str


class Message(Schema):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    reasoning_content: str | None = None


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_name_for_the_limit(self) -> ChatRequest:
        if self.max_completion_tokens is not None:
            if self.max_tokens is not None:
                raise RequestError(
                    "max_tokens and max_completion_tokens exclude each other", param="max_tokens"
                )
            self.max_tokens = self.max_completion_tokens
        return self


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: str | Tokens | Texts | Annotated[list[Tokens], Field(fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = COMPLETION_MAX_TOKENS
    echo: Literal[False] = False
    best_of: Literal[1] = 1

    @model_validator(mode="after")
    def _one_prompt(self) -> CompletionRequest:
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            if len(self.prompt) != 1:
                raise RequestError(
                    f"one prompt per request is supported, not {len(self.prompt)}", param="prompt"
                )
            self.prompt = self.prompt[0]
        return self
