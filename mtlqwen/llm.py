"""The Python API: `LLM` answers prompts, one or many, blocking, streaming, or under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload
from weakref import WeakKeyDictionary

from .arguments import misfit
from .chat import ChatTemplate, Prompt
from .errors import RequestError, context_exceeded
from .generation import AsyncStream, Completion, Courier, Generation, Stream
from .load import close_engine, demo_model_path, open_engine
from .request import checked_params, checked_prompt
from .sampling import SamplingParams
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .engine import Engine, Output

Message = Mapping[str, Any]
OnePrompt = str | Sequence[Message] | Sequence[int] | Prompt
A_PROMPT = "text, a list of messages, or a list of token ids"
ManyPrompts = list[str] | list[list[Message]] | list[list[int]] | list[Prompt]


class RawPrompt(Prompt):
    """A prompt that is no chat: what the model thinks is text like any other."""


class LLM:
    """A model that is ready to answer.

        with LLM("Qwen3.5-4B-Q4_K_M.gguf") as llm:
            print(llm.generate("What is the capital of France?").text)

    A prompt is one of
      * a `str`: what the user says; with `raw=True`, the text that the model continues as it
        stands, where control tokens such as <|im_start|> count,
      * messages, `[{"role": "user", "content": "..."}, ...]`,
      * token ids, `[int, ...]`, used as they are.

    Up to `max_slots` requests share each pass over the weights; more wait their turn. All methods
    may be called from any thread. Their further keywords are those of `prompt`: `thinking` (True,
    False; None: as the chat template has it), `raw`, and `template_kwargs`, more variables of it.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        drafter: str | Path | None = None,
        *,
        device: str = "cpu",
        threads: int = 0,
        ctx: int | None = None,
        max_slots: int = 8,
        pass_tokens: int = 128,
        kv_memory: int | None = None,
        prefix_memory: int | None = None,
        prefix_cache_dir: str | Path | None = None,
        draft: str | None = None,
        draft_width: int | None = None,
    ):
        """Maps `model`, a GGUF file (default: the bundled demo model), and starts the engine.

        threads: workers of the device; 0 means every core this process may use.
        ctx: most tokens of one request, prompt and answer; default 65,536 or the model's limit.
        pass_tokens: most tokens of one pass; large suits long prompts, small suits waiting users.
        kv_memory, prefix_memory: budgets in bytes for K/V bundles and for prefix-cache snapshots.
        prefix_cache_dir: keeps prefix-cache entries across restarts.
        drafter: a DFlash drafter's GGUF file, or "demo" for that of the demo model: guesses tokens
            that the model verifies together in one pass. On the cpu device the answers stay the
            same, on metal but for ties that rounding decides.
        draft: "dflash" is the default with a drafter; "ngram" needs none and guesses what followed
            the last few tokens before: for text that quotes. draft_width: guesses per pass, 0 to
            15; None: as many as pay.

        Raises ModelError for a file that cannot be run, MtlqError for settings that cannot hold.
        """
        path = model if model is not None else demo_model_path()
        engine = open_engine(
            path,
            device=device,
            threads=threads,
            ctx=ctx,
            max_slots=max_slots,
            pass_tokens=pass_tokens,
            kv_memory=kv_memory,
            prefix_memory=prefix_memory,
            prefix_cache_dir=prefix_cache_dir,
            drafter=drafter,
            draft=draft,
            draft_width=draft_width,
        )
        try:
            tokenizer = Tokenizer.from_gguf(engine.runner.gguf)
            template = ChatTemplate.from_gguf(engine.runner.gguf, tokenizer)
        except BaseException:
            close_engine(engine)
            raise
        self._assemble(engine, tokenizer, template, Path(path).stem)
        engine.start()

    @classmethod
    def over(cls, engine: Engine, tokenizer: Tokenizer, template: ChatTemplate, name: str) -> LLM:
        """An LLM over parts that the caller made and started, and that `close()` closes."""
        llm = cls.__new__(cls)
        llm._assemble(engine, tokenizer, template, name)
        return llm

    def _assemble(
        self, engine: Engine, tokenizer: Tokenizer, template: ChatTemplate, name: str
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.name = name
        self._couriers: WeakKeyDictionary[asyncio.AbstractEventLoop, Courier] = WeakKeyDictionary()

    @property
    def max_context(self) -> int:
        """Most tokens of one request, prompt and answer together."""
        return self.engine.max_context

    # ---- prompts -------------------------------------------------------------------------------

    def prompt(
        self,
        prompt: OnePrompt,
        *,
        thinking: bool | None = None,
        raw: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The token ids of `prompt`, with what the engine and the reader need to know about them.

        Raises RequestError for a prompt without tokens, text that the context cannot hold, messages
        that the template refuses, unknown ids, or keywords that would have no effect.
        """
        _check_keywords(thinking, raw, template_kwargs)
        is_text = isinstance(prompt, str)
        is_chat = (
            isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
        )
        if is_chat or (is_text and not raw):
            if raw:
                raise RequestError("messages need the chat template: not with raw", param="raw")
            messages = [{"role": "user", "content": prompt}] if is_text else prompt
            return self._rendered(
                cast(Sequence[Message], messages), thinking, template_kwargs or {}
            )
        if thinking is not None or template_kwargs:
            raise RequestError("only a chat can turn thinking on or off, or set template variables")
        if isinstance(prompt, Prompt):
            return prompt
        text = cast(str, prompt) if is_text else ""
        ids = self._encoded(text) if is_text else cast(Sequence[int], prompt)
        checked = checked_prompt(ids, (), self.tokenizer.num_tokens, wanted=A_PROMPT)
        return RawPrompt(checked.tolist(), checkpoints=[], starts_in_think=False, text=text)

    def _rendered(
        self,
        messages: Sequence[Message],
        thinking: bool | None,
        template_kwargs: Mapping[str, Any],
    ) -> Prompt:
        for name in ("thinking", "tools", "limit"):
            if name in template_kwargs:
                raise RequestError(
                    f"{name!r} cannot be set as a variable of the chat template",
                    param="chat_template_kwargs",
                )
        return self.template.render(
            messages, thinking=thinking, limit=self._max_prompt, **template_kwargs
        )

    def _encoded(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, control=True, limit=self._max_prompt)
        if len(ids) > self._max_prompt:
            raise context_exceeded(self._max_prompt)
        return ids

    @property
    def _max_prompt(self) -> int:
        return self.max_context - 1

    # ---- blocking ------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompts: OnePrompt, params: SamplingParams | None = None, **prompt_kwargs: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: ManyPrompts, params: SamplingParams | None = None, **prompt_kwargs: Any
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: OnePrompt | ManyPrompts,
        params: SamplingParams | None = None,
        **prompt_kwargs: Any,
    ) -> Completion | list[Completion]:
        """Answers one prompt, or a list of prompts together; blocks until all are done.

        Raises RequestError for a prompt that cannot be served; then none of them is answered.
        """
        many = _as_many(prompts)
        if many is None:
            with self.stream(cast(OnePrompt, prompts), params, **prompt_kwargs) as stream:
                return stream.completion()
        ready = [self.prompt(prompt, **prompt_kwargs) for prompt in many]
        streams: list[Stream] = []
        try:
            for prompt in ready:
                streams.append(self.stream(prompt, params))
            return [stream.completion() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def stream(
        self, prompt: OnePrompt, params: SamplingParams | None = None, **prompt_kwargs: Any
    ) -> Stream:
        """The answer as it comes, an iterator of `Delta`s; closing it cancels the request."""
        return Stream(*self._begin(prompt, params, prompt_kwargs))

    # ---- asyncio -------------------------------------------------------------------------------

    async def agenerate(
        self,
        prompts: OnePrompt | ManyPrompts,
        params: SamplingParams | None = None,
        **prompt_kwargs: Any,
    ) -> Completion | list[Completion]:
        """`generate` for asyncio; cancelling the task cancels the requests."""
        many = _as_many(prompts)
        if many is None:
            one = await self.astream(cast(OnePrompt, prompts), params, **prompt_kwargs)
            return await one.completion()
        streams: list[AsyncStream] = []
        try:
            for prompt in many:
                streams.append(await self.astream(prompt, params, **prompt_kwargs))
            return list(await asyncio.gather(*(stream.completion() for stream in streams)))
        finally:
            for each in streams:
                each.close()

    async def astream(
        self, prompt: OnePrompt, params: SamplingParams | None = None, **prompt_kwargs: Any
    ) -> AsyncStream:
        """`stream` for asyncio: `async for delta in await llm.astream(...)`."""
        loop = asyncio.get_running_loop()
        # A long prompt takes tens of milliseconds to render and tokenise: not on the loop.
        ready = await asyncio.to_thread(self.prompt, prompt, **prompt_kwargs)
        courier = self._couriers.setdefault(loop, Courier(loop))
        return AsyncStream(*self._begin(ready, params, {}), courier)

    # ---- one request ---------------------------------------------------------------------------

    def _begin(
        self, prompt: OnePrompt, params: SamplingParams | None, prompt_kwargs: dict[str, Any]
    ) -> tuple[Generation, Callable[[Callable[[Output], None]], Callable[[], None]]]:
        ready = self.prompt(prompt, **prompt_kwargs)
        params = SamplingParams() if params is None else checked_params(params)

        def submit(on_output: Callable[[Output], None]) -> Callable[[], None]:
            request = self.engine.submit(
                ready.ids,
                params,
                checkpoints=ready.checkpoints,
                stop_ids=self.tokenizer.stop_ids,
                on_output=on_output,
            )
            return lambda: self.engine.cancel(request)

        split_reasoning = not isinstance(ready, RawPrompt)
        generation = Generation(self.tokenizer, ready, params, split_reasoning=split_reasoning)
        return generation, submit

    def close(self) -> None:
        """Cancels what still runs and gives everything back. May be called twice."""
        close_engine(self.engine)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _check_keywords(
    thinking: bool | None, raw: bool, template_kwargs: Mapping[str, Any] | None
) -> None:
    if not isinstance(thinking, bool | None):
        raise RequestError(misfit("thinking", thinking, "True, False or None"), param="thinking")
    if not isinstance(raw, bool):
        raise RequestError(misfit("raw", raw, "True or False"), param="raw")
    if template_kwargs is not None and not (
        isinstance(template_kwargs, Mapping) and all(isinstance(k, str) for k in template_kwargs)
    ):
        wanted = "a mapping of names to values"
        raise RequestError(
            misfit("template_kwargs", template_kwargs, wanted), param="template_kwargs"
        )


def _as_many(prompts: OnePrompt | ManyPrompts) -> list[OnePrompt] | None:
    """The prompts of a list of prompts; None for a single prompt, which may be a list itself."""
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list | Prompt):
        return cast(list[OnePrompt], prompts)
    return None
