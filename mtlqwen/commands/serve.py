"""`mtlqwen serve`: the OpenAI API over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import (
    ByteSize,
    FilePath,
    context_option,
    device_options,
    draft_options,
    engine_option,
    model_option,
    verbose_option,
)
from .terminal import Reporter, open_llm

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.pass_obj
@model_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
)
@click.option(
    "--api-key", envvar="MTLQWEN_API_KEY", show_envvar=True, help="Key that clients must send."
)
@click.option("--alias", multiple=True, metavar="NAME", help="Further name of the model.")
@engine_option(
    "--slots",
    "max_slots",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Requests that share a pass; more wait their turn.",
)
@engine_option(
    "--pass-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most tokens of one pass.",
)
@engine_option("--kv-memory", type=ByteSize(), help="Budget of the K/V memory, such as 4GiB.")
@engine_option("--prefix-memory", type=ByteSize(), help="Budget of the prefix cache's snapshots.")
@engine_option(
    "--prefix-cache-dir",
    type=FilePath(file_okay=False, path_type=Path),
    help="Keep the prefix cache here across restarts.",
)
@context_option
@device_options
@draft_options
@verbose_option
def serve(
    engine_options: dict[str, Any],
    model: Path | None,
    host: str,
    port: int,
    api_key: str | None,
    alias: tuple[str, ...],
    verbose: bool,
) -> None:
    """Serve /v1/chat/completions, /v1/completions, /v1/models and /health."""
    from mtlqwen.server.app import create_app
    from mtlqwen.server.run import bind, run

    try:
        listener = bind(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from error
    with (
        listener,
        open_llm(model, Reporter(verbose), **engine_options) as llm,
    ):
        if host not in LOOPBACK and api_key is None:
            click.echo(f"mtlqwen: anybody who reaches {host} may use this: set --api-key", err=True)
        app = create_app(llm, api_key=api_key, aliases=alias)
        listener.listen()  # from the message on, clients may connect
        shown = f"[{host}]" if ":" in host else host
        click.echo(
            f"mtlqwen: serving {llm.name} at http://{shown}:{listener.getsockname()[1]}/v1 "
            "(Ctrl-C stops)",
            err=True,
        )
        run(app, listener, llm.engine.close, log_level="info" if verbose else "warning")
