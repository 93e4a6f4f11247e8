"""`mtlqwen info`: what a model file holds."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(model: Path | None, as_json: bool) -> None:
    """Describe MODEL, a GGUF file: architecture, tensors, tokenizer, memory.

    Without MODEL it is the bundled demo model.
    """
    from rich.console import Console

    from mtlqwen.info import model_info, render
    from mtlqwen.load import demo_model_path

    described = model_info(model or demo_model_path())
    if as_json:
        click.echo(json.dumps(described.to_json(), ensure_ascii=False))
    else:
        Console().print(render(described))
