"""`mtlqwen info`: what a model file holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import FilePath, model_option


@click.command()
@click.argument("file", required=False, type=FilePath(path_type=Path))
@model_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(file: Path | None, model: Path | None, as_json: bool) -> None:
    """Describe a GGUF file, FILE or that of -m: architecture, tensors, tokenizer, memory."""
    if file is not None and model is not None:
        raise click.UsageError(f"FILE is {file} and -m {model}; give one of them")

    from rich.console import Console

    from mtlqwen.info import model_info, render
    from mtlqwen.load import demo_model_path

    described = model_info(file or model or demo_model_path())
    if as_json:
        click.echo(json.dumps(described.to_json(), ensure_ascii=False))
    else:
        Console().print(render(described))
