"""Chat messages to a prompt, by the Jinja template that the model file carries.

Only the template can write control tokens: those in its source are replaced by marks that no
message can contain, and after rendering nothing but a mark becomes a control token. A message that
spells out <|im_end|>, even in pieces that the template joins, stays the plain text it is.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .arguments import misfit
from .errors import ModelError, RequestError, context_exceeded
from .tokenizer import added_token_splitter

if TYPE_CHECKING:
    from .gguf import GGUF
    from .tokenizer import Tokenizer

OWN_VARIABLES = ("messages", "add_generation_prompt")


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for the engine.

    `checkpoints` are token counts where a turn ends, increasing: after the system turn, after each
    message, just before the answer begins. `starts_in_think`: the answer begins inside <think>.
    """

    ids: list[int]
    checkpoints: list[int]
    starts_in_think: bool
    text: str


class ChatTemplate:
    """The chat template of a model."""

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, variables: Mapping[str, str] | None = None
    ):
        """`variables`: texts of named tokens that the template may use, such as eos_token.

        Raises ModelError if `source` is no Jinja template; without a source, `render` refuses.
        """
        self._tokenizer = tokenizer
        self._control_text = {token: text for text, token in tokenizer.control_tokens.items()}
        self._control = added_token_splitter(tokenizer.control_tokens)
        # Random, so that nobody can write a mark; errors never show one.
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(rf"\[{self._nonce}:(\d+)\]")
        self._variables = {k: self._marked(v) for k, v in (variables or {}).items()}
        try:
            self._template = source and _environment().from_string(self._marked(source))
        except TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template is no valid Jinja: line {error.lineno}: {error.message}"
            ) from error

    @classmethod
    def from_gguf(cls, gguf: GGUF, tokenizer: Tokenizer) -> ChatTemplate:
        """The template in `gguf`; without one, a ChatTemplate that refuses to render."""
        source = gguf.metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            raise ModelError(f"{gguf.path}: tokenizer.chat_template is no text")
        variables = {}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            token = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(token, int):
                variables[f"{name}_token"] = tokenizer.decode([token], show_control=True)
        try:
            return cls(source, tokenizer, variables)
        except ModelError as error:
            raise ModelError(f"{gguf.path}: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        limit: int | None = None,
        **template_kwargs: Any,
    ) -> Prompt:
        """The prompt for `messages`, up to where the answer begins.

        Content is text or a list of text parts; "developer" is "system"; system messages are
        merged, in order, into the first turn. `thinking` sets the template's enable_thinking, None
        leaves its default; `template_kwargs` are further variables. Raises RequestError, also for
        more than `limit` tokens.
        """
        if not self._template:
            raise RequestError("the model has no chat template; send it a raw prompt")
        variables = self._variables | _checked_variables(template_kwargs, thinking)
        prepared = prepare_messages(messages)
        try:
            rendered = self._template.render(
                variables, messages=prepared, tools=tools, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of somebody else
            reason = self._shown(str(error)) or type(error).__name__
            raise RequestError(
                f"the chat template refuses these messages: {reason}", param="messages"
            ) from None
        return self._tokenised(rendered, limit)

    def _tokenised(self, rendered: str, limit: int | None) -> Prompt:
        parts = self._mark.split(rendered)  # text, id, text, ..., id, text
        ids: list[int] = []
        checkpoints: list[int] = []
        for text, token in zip(parts[0::2], [*parts[1::2], None], strict=True):
            turn_ended = bool(ids) and ids[-1] in self._tokenizer.stop_ids
            num_before = len(ids)
            ids += self._tokenizer.encode(text, limit=limit)
            if limit is not None and len(ids) > limit:
                raise context_exceeded(limit)
            if turn_ended:  # the line break after the end token belongs to the turn
                checkpoints.append(num_before if text.strip() else len(ids))
            if token is not None:
                ids.append(int(token))
        while checkpoints and checkpoints[-1] >= len(ids):
            checkpoints.pop()
        answer = ids[checkpoints[-1] :] if checkpoints else ids
        return Prompt(ids, checkpoints, self._opens_think(answer), self._shown(rendered))

    def _opens_think(self, ids: list[int]) -> bool:
        for token in reversed(ids):
            if token in (self._tokenizer.think_open, self._tokenizer.think_close):
                return token == self._tokenizer.think_open
        return False

    def _marked(self, template_text: str) -> str:
        """`template_text` with a mark for each control token."""
        parts = self._control.split(template_text)
        for i in range(1, len(parts), 2):
            parts[i] = f"[{self._nonce}:{self._tokenizer.control_tokens[parts[i]]}]"
        return "".join(parts)

    def _shown(self, rendered: str) -> str:
        return self._mark.sub(lambda mark: self._control_text[int(mark[1])], rendered)


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as every template takes them, see `ChatTemplate.render`; copies what it changes."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    system: list[str] = []
    rest: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"{where} must be an object with a role", param=where)
        content = _text_content(message.get("content"), f"{where}.content")
        if message["role"] in ("system", "developer"):
            system += [content] if content else []
            continue
        prepared = {**message, "content": content}
        if message.get("tool_calls"):
            prepared["tool_calls"] = _parsed_calls(message["tool_calls"], f"{where}.tool_calls")
        rest.append(prepared)
    if system:
        rest.insert(0, {"role": "system", "content": "\n\n".join(system)})
    return rest


def _text_content(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} must be text or a list of text parts", param=where)
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestError(
                f"{where}[{i}] is of type {kind!r}; the model reads only parts of type 'text'",
                param=where,
            )
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}[{i}].text must be text", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _parsed_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as mappings; OpenAI's clients send them as JSON text."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestError(f"{where} must be a list of tool calls", param=where)
    parsed = []
    for i, call in enumerate(calls):
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}[{i}] must name a function", param=where)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"{where}[{i}].function.arguments is no valid JSON: {error}", param=where
                ) from None
        if not isinstance(arguments, Mapping):
            raise RequestError(f"{where}[{i}].function.arguments must be an object", param=where)
        parsed.append({**call, "function": {**function, "arguments": arguments}})
    return parsed


def _checked_variables(template_kwargs: dict[str, Any], thinking: bool | None) -> dict[str, Any]:
    for name in OWN_VARIABLES:
        if name in template_kwargs:
            raise RequestError(
                f"the template variable {name!r} cannot be set from outside",
                param="chat_template_kwargs",
            )
    enabled = template_kwargs.get("enable_thinking")
    if not isinstance(enabled, bool | None):
        raise RequestError(
            misfit("enable_thinking", enabled, "true or false"), param="chat_template_kwargs"
        )
    if thinking is None:
        return template_kwargs
    if template_kwargs.get("enable_thinking", thinking) != thinking:
        raise RequestError(
            f"thinking is {thinking}, but enable_thinking {template_kwargs['enable_thinking']}",
            param="chat_template_kwargs",
        )
    return {**template_kwargs, "enable_thinking": thinking}


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: Hugging Face's filters and functions, in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML and sorts keys; models were trained on plain JSON.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
