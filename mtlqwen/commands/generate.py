"""`mtlqwen generate`: one prompt, one answer."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    context_option,
    device_options,
    draft_options,
    model_option,
    sampling_options,
    sampling_params,
    verbose_option,
)
from .terminal import Reporter, open_llm, peak_rss_bytes, print_answer

if TYPE_CHECKING:
    from mtlqwen.generation import Completion
    from mtlqwen.llm import OnePrompt


@click.command()
@click.pass_obj
@click.argument("prompt", required=False)
@model_option
@click.option(
    "--prompt-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Read the prompt from a file; - is stdin, which is also read when there is no PROMPT.",
)
@click.option("--system", help="System message.")
@click.option(
    "--think/--no-think", default=None, help="Thinking on or off.  [default: as the model has it]"
)
@click.option("--raw", is_flag=True, help="The prompt is used as it stands, without chat template.")
@click.option(
    "--ids", is_flag=True, help="Token ids in, separated by commas or spaces; token ids out."
)
@sampling_options
@context_option
@device_options
@draft_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all figures.")
@verbose_option
def generate(
    engine_options: dict[str, Any],
    prompt: str | None,
    model: Path | None,
    prompt_file: Any,
    system: str | None,
    think: bool | None,
    raw: bool,
    ids: bool,
    as_json: bool,
    verbose: bool,
    **sampling: Any,
) -> None:
    """Answer PROMPT: text streams to stdout, figures go to stderr."""
    if raw and ids:
        raise click.UsageError("--raw and --ids exclude each other")
    if (raw or ids) and (system is not None or think is not None):
        raise click.UsageError("--system and --think need the chat template: not with --raw, --ids")
    text = _read_prompt(prompt, prompt_file)
    request: OnePrompt = text
    if ids:
        request = _parse_ids(text)
    elif not raw:
        request = [{"role": "user", "content": text}]
        if system is not None:
            request = [{"role": "system", "content": system}, *request]
    params = sampling_params(**sampling)

    reporter = Reporter(verbose)
    with open_llm(model, reporter, **engine_options) as llm:
        with llm.stream(request, params, thinking=think, raw=raw) as stream:
            done = stream.completion() if ids or as_json else print_answer(stream, reporter)
        if as_json:
            click.echo(json.dumps(_figures(done, llm.name), ensure_ascii=False))
        elif ids:
            click.echo(",".join(map(str, done.token_ids)))
        reporter.figures(done)
        reporter.drafts(llm.engine.stats)


def _read_prompt(prompt: str | None, prompt_file: Any) -> str:
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("PROMPT and --prompt-file exclude each other")
    if prompt is None:
        if prompt_file is None:
            if sys.stdin.isatty():
                raise click.UsageError("give a PROMPT, --prompt-file, or a prompt on stdin")
            prompt_file = sys.stdin.buffer
        try:
            prompt = prompt_file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise click.ClickException(f"the prompt is not UTF-8: {error}") from error
    if not prompt.strip():
        raise click.UsageError("the prompt is empty")
    return prompt


def _parse_ids(text: str) -> list[int]:
    parts = [part for part in re.split(r"[,\s]+", text) if part]
    for part in parts:
        if not re.fullmatch("[0-9]{1,10}", part):
            raise click.UsageError(f"--ids: {part[:20]!r} is not a token id")
    return [int(part) for part in parts]


def _figures(done: Completion, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "text": done.text,
        "reasoning": done.reasoning,
        "token_ids": done.token_ids,
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.prompt_tokens,
        "cached_tokens": done.cached_tokens,
        "generated_tokens": done.generated_tokens,
        "prefill_tokens_per_second": round(done.prefill_tokens_per_second, 3),
        "generate_tokens_per_second": round(done.generate_tokens_per_second, 3),
        "time_to_first_token_s": round(done.time_to_first_token_s, 6),
        "peak_rss_bytes": peak_rss_bytes(),
    }
