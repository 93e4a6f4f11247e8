"""The `mtlqwen` command: finds the subcommand; a failure is one line and an exit status."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from . import __version__
from .errors import MtlqError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # what a shell reports for a program that SIGPIPE ended

# name -> line of help. The module of a command is imported when it runs: `--help` needs none.
COMMANDS = {
    "generate": "Answer one prompt.",
    "chat": "Hold a conversation in the terminal.",
    "serve": "Serve the OpenAI API over HTTP.",
    "bench": "Measure prompt and generation speed.",
    "convert": "Make a GGUF from a Hugging Face directory or another GGUF.",
    "info": "Describe a model file.",
    "devices": "List the devices of this machine.",
    "doctor": "Check that a device computes what it should.",
}


class LazyGroup(click.Group):
    """Knows the names of its commands, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"mtlqwen.commands.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The interpreter flushes stdout once more at exit: give it somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_BROKEN_PIPE)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run Qwen 3.5 models: mtlqwen COMMAND --help tells more."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USAGE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended
    by SIGTERM, 129 by SIGHUP.
    """
    _prepare_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup's stays
            signal.signal(number, _exit_in_order)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    try:
        return cli.main(args=arguments, prog_name="mtlqwen", standalone_mode=False) or 0
    except click.Abort:  # Ctrl-C; click has ended the line
        return EXIT_INTERRUPTED
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "mtlqwen"
        reason = error.format_message().rstrip(".")
        click.echo(f"{command}: {reason}; see {command} --help", err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        return _fail(error.format_message())
    except MtlqError as error:
        return _fail(str(error))
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(f"{error.filename}: {reason}" if error.filename else reason)
    except MemoryError:
        return _fail("out of memory; use a smaller model or a smaller --ctx")


def _prepare_streams() -> None:
    """What the caller has closed of stdin, stdout and stderr leads nowhere from now on; else the
    next file that is opened would take its number. Text that their encoding lacks ends nothing.
    """
    streams = ("stdin", "r", "surrogateescape"), ("stdout", "w", "replace"), ("stderr", "w", None)
    for name, mode, errors in streams:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif errors is not None:
            getattr(sys, name).reconfigure(errors=errors)


def _exit_in_order(number: int, frame: object) -> None:
    """Unlike the default, removes unfinished files and brings the cursor back."""
    sys.exit(128 + number)


def _fail(message: str) -> int:
    click.echo(f"mtlqwen: {message}", err=True)
    return EXIT_FAILURE
