"""Options that several commands share, and how their values become the library's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mtlqwen.errors import RequestError

if TYPE_CHECKING:
    from mtlqwen.sampling import SamplingParams

BYTES_OF_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


class ByteSize(click.ParamType):
    """A number of bytes: 1073741824, 1024M, 1G or 1GiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", value, re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size; write 512M or 2GiB", param, ctx)
        return int(float(match[1]) * BYTES_OF_UNIT[match[2].upper()])


class FilePath(click.Path):
    """A path; not "", as of a script's variable that is not set: it would be the directory here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class IntList(click.ParamType):
    """Whole numbers, separated by commas."""

    name = "n[,n...]"

    def __init__(self, minimum: int):
        self._minimum = minimum

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            numbers = [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers; write 128,512", param, ctx)
        if min(numbers) < self._minimum:
            self.fail(f"{min(numbers)} is less than {self._minimum}", param, ctx)
        return numbers


def _together(*options: Callable[[Command], Command]) -> Decorator[Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.ensure_object(dict)[parameter.name] = value


def engine_option(*names: str, **attributes: Any) -> Decorator[Any]:
    """An option that is a keyword of `LLM`: commands get all of these together, by `pass_obj`."""
    return click.option(*names, expose_value=False, callback=_keep, **attributes)


model_option = click.option(
    "-m",
    "--model",
    type=FilePath(path_type=Path),
    help="GGUF file; of a split model the first part.  [default: the bundled demo model]",
)

device_options = _together(
    engine_option(
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        help="Workers of the device.  [default: every usable core]",
    ),
    engine_option(
        "--device",
        default="cpu",
        envvar="MTLQ_DEVICE",
        show_default=True,
        help="Device that runs the model: cpu or metal.",
    ),
)

context_option = engine_option(
    "--ctx",
    type=click.IntRange(min=1),
    help="Most tokens of prompt and answer, in blocks of 128.  "
    "[default: 65536, or the model's limit]",
)


class DraftWidth(click.ParamType):
    """A number of drafts, or auto: None."""

    name = "auto|0..15"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == "auto":
            return None
        if isinstance(value, str) and value.isdecimal() and int(value) <= 15:
            return int(value)
        self.fail(f"{value!r} is neither auto nor a number from 0 to 15", param, ctx)


draft_options = _together(
    engine_option(
        "--drafter",
        metavar="FILE",
        help="DFlash drafter that guesses tokens for the model to verify together: the model still "
        "decides; demo is the demo model's.",
    ),
    engine_option(
        "--draft",
        type=click.Choice(["dflash", "ngram"]),
        help="Who guesses: the drafter, or without one what followed the last few tokens before.",
    ),
    engine_option("--draft-width", type=DraftWidth(), help="Guesses per pass.  [default: auto]"),
)

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Progress and figures on stderr, also without a terminal."
)

sampling_options = _together(
    click.option(
        "--temperature",
        type=float,
        default=0.0,
        show_default=True,
        help="0: always the likeliest token.",
    ),
    click.option("--top-k", type=int, default=0, help="Keep the k likeliest tokens; 0: all."),
    click.option(
        "--top-p",
        type=float,
        default=1.0,
        help="Keep the likeliest tokens up to this probability together; 0: the likeliest alone.",
    ),
    click.option(
        "--min-p",
        type=float,
        default=0.0,
        help="Keep tokens of at least this share of the likeliest one's probability.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        default=0.0,
        help="Taken off the logit of every token generated before.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        default=0.0,
        help="Taken off per earlier occurrence.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="Divides the logits of tokens seen before.",
    ),
    click.option("--seed", type=int, help="Makes sampling repeatable.  [default: a fresh one]"),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."
    ),
    click.option(
        "-n",
        "--max-tokens",
        type=int,
        default=2048,
        show_default=True,
        help="Most tokens to generate.",
    ),
    click.option("--ignore-eos", is_flag=True, help="Go on past the end of the answer."),
)


def sampling_params(**values: Any) -> SamplingParams:
    """The values of `sampling_options`; which are allowed, SamplingParams decides."""
    from mtlqwen.sampling import SamplingParams

    try:
        return SamplingParams(**values)
    except RequestError as error:
        name = error.param or ""
        told = str(error).replace(name, f"--{name.replace('_', '-')}", 1)
        raise click.UsageError(told) from error
