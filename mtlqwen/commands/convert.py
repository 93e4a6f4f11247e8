"""`mtlqwen convert`: makes GGUF files."""

from __future__ import annotations

from pathlib import Path

import click

from .options import verbose_option
from .terminal import Reporter

# Those of mtlqwen.convert, which takes too long to import for --help.
FILE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M")


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--type",
    "file_type",
    type=click.Choice(FILE_TYPES, case_sensitive=False),
    default="Q8_0",
    show_default=True,
    help="Type of the weights.",
)
@click.option("--name", help="Name of the model.  [default: the directory's]")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory to take the tokenizer from.  [default: SOURCE]",
)
@verbose_option
def convert(
    source: Path,
    out: Path,
    file_type: str,
    name: str | None,
    tokenizer: Path | None,
    verbose: bool,
) -> None:
    """Write OUT, a GGUF file, from SOURCE: a Hugging Face directory or another GGUF file."""
    from mtlqwen.convert import convert as write

    reporter = Reporter(verbose)
    with reporter.progress(f"writing {out}") as progress:
        write(source, out, file_type, name=name, tokenizer=tokenizer, progress=progress)
    if reporter.enabled:
        click.echo(f"{out}: {file_type}, {out.stat().st_size / 2**20:.1f} MiB", err=True)
