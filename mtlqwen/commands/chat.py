"""`mtlqwen chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtlqwen.errors import RequestError

from .options import (
    context_option,
    device_options,
    draft_options,
    model_option,
    sampling_options,
    sampling_params,
    verbose_option,
)
from .terminal import Reporter, open_llm, print_answer

if TYPE_CHECKING:
    from mtlqwen.llm import LLM
    from mtlqwen.sampling import SamplingParams

HELP = """/clear  forget the conversation
/exit   leave (also Ctrl-D)
Ctrl-C  stop the answer"""


@click.command()
@click.pass_obj
@model_option
@click.option("--system", help="System message.")
@click.option(
    "--think/--no-think", default=None, help="Thinking on or off.  [default: as the model has it]"
)
@sampling_options
@context_option
@device_options
@draft_options
@verbose_option
def chat(
    engine_options: dict[str, Any],
    model: Path | None,
    system: str | None,
    think: bool | None,
    verbose: bool,
    **sampling: Any,
) -> None:
    """Talk with the model; /help tells what else can be typed."""
    params = sampling_params(**sampling)
    reporter = Reporter(verbose)
    with open_llm(model, reporter, **engine_options) as llm:
        Conversation(llm, params, reporter, system, think).run()
        reporter.drafts(llm.engine.stats)


class Conversation:
    """The loop of `chat`: reads a line, answers it, remembers both."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        reporter: Reporter,
        system: str | None,
        thinking: bool | None,
    ):
        self._llm = llm
        self._params = params
        self._reporter = reporter
        self._thinking = thinking
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self._messages = list(self._opening)

    def run(self) -> None:
        """Until /exit or the end of the input."""
        while True:
            try:
                line = _read_line().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                click.echo()
                continue
            if line == "/exit":
                return
            if line == "/clear":
                self._messages = list(self._opening)
            elif line.startswith("/"):
                click.echo(HELP, err=True)
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            stream = self._llm.stream(asked, self._params, thinking=self._thinking)
        except RequestError as error:
            hint = "; /clear starts anew" if error.code == "context_length_exceeded" else ""
            click.echo(f"mtlqwen: {error}{hint}", err=True)
            return
        except KeyboardInterrupt:  # while a long conversation is tokenised
            click.echo()
            return
        with stream:
            try:
                self._reporter.figures(print_answer(stream, self._reporter))
            except KeyboardInterrupt:
                stream.close()
            answer = stream.partial().text
        # A question that was stopped before any answer is as if it had not been asked.
        if answer:
            self._messages = [*asked, {"role": "assistant", "content": answer}]


def _read_line() -> str:
    if not sys.stdin.isatty():
        return input()
    import readline  # noqa: F401  gives `input` its history and line editing

    return input("> ")
