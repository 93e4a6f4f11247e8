"""What `generate` and `chat` show: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mtlqwen.generation import Completion, Stream
    from mtlqwen.llm import LLM
    from mtlqwen.stats import Stats
    from mtlqwen.text import Delta

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Reporter:
    """Progress and figures: on a terminal, or where the user asked for them with -v."""

    def __init__(self, verbose: bool):
        self.is_terminal = sys.stderr.isatty()
        self.enabled = verbose or self.is_terminal

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Shows `what` while the block runs."""
        if self.is_terminal:
            from rich.console import Console
            from rich.markup import escape

            with Console(stderr=True).status(escape(what)):
                yield
        else:
            if self.enabled:
                click.echo(f"mtlqwen: {what}", err=True)
            yield

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Shows `what` with a bar; yields what sets the bar to so much of so much."""
        if not self.is_terminal:
            with self.working(what):
                yield lambda done, total: None
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(escape(what))
            yield lambda done, total: bars.update(bar, completed=done, total=total)

    def figures(self, done: Completion) -> None:
        """One line: prompt and generation speed, time to first token, memory."""
        if self.enabled:
            cached = f", {done.cached_tokens} cached" if done.cached_tokens else ""
            click.echo(
                f"prompt {done.prompt_tokens} tokens{cached}, "
                f"{done.prefill_tokens_per_second:.1f} tokens/s; "
                f"generated {done.generated_tokens} tokens, "
                f"{done.generate_tokens_per_second:.1f} tokens/s; "
                f"first token {done.time_to_first_token_s:.3f} s; "
                f"peak memory {peak_rss_bytes() / 2**20:.0f} MiB",
                err=True,
            )

    def drafts(self, stats: Stats) -> None:
        """One line, if there were drafts: tokens per pass, the share accepted at each position."""
        if self.enabled and sum(stats.drafted):
            pairs = zip(stats.accepted, stats.drafted, strict=True)
            shares = " ".join(f"{100 * right / n:.0f}" for right, n in pairs if n)
            click.echo(
                f"drafts: {stats.tokens_per_pass:.2f} tokens per pass; "
                f"% accepted by position: {shares}",
                err=True,
            )


@contextmanager
def open_llm(model: Path | None, reporter: Reporter, **options: Any) -> Iterator[LLM]:
    """The model, loaded; says so when it is the bundled one."""
    if model is None:
        click.echo(
            "mtlqwen: using the bundled demo model, a toy in knowledge; -m FILE.gguf runs another",
            err=True,
        )
    with reporter.working(f"loading {model or 'the demo model'}"):
        from mtlqwen.llm import LLM

        llm = LLM(model, **options)
    with llm:
        yield llm


class Printer:
    """Writes an answer as it comes; the reasoning dimmed on a terminal, not at all into a pipe."""

    def __init__(self) -> None:
        self._shows_reasoning = sys.stdout.isatty()
        self._kind = "content"

    def write(self, delta: Delta) -> None:
        if delta.kind == "reasoning" and not self._shows_reasoning:
            return
        if delta.kind != self._kind:
            sys.stdout.write(DIM if delta.kind == "reasoning" else f"{PLAIN}\n\n")
            self._kind = delta.kind
        sys.stdout.write(delta.text)
        sys.stdout.flush()

    def end(self) -> None:
        """Ends the line."""
        sys.stdout.write("\n" if self._kind == "content" else f"{PLAIN}\n")
        sys.stdout.flush()


def print_answer(stream: Stream, reporter: Reporter) -> Completion:
    """Streams an answer to stdout; the whole of it."""
    printer = Printer()
    with reporter.working(f"reading {stream.prompt_tokens} prompt tokens"):
        first = next(stream, None)
    try:
        if first is not None:
            printer.write(first)
        for delta in stream:
            printer.write(delta)
    finally:
        printer.end()
    done = stream.completion()
    if done.reasoning and not done.text and done.finish_reason == "length":
        click.echo(
            f"mtlqwen: the {done.generated_tokens} tokens ended while the model was thinking; "
            "raise --max-tokens or use --no-think",
            err=True,
        )
    return done


def peak_rss_bytes() -> int:
    """Most memory this process has had resident."""
    try:
        # getrusage would count what the parent had resident before it started this process.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
