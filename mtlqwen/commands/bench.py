"""`mtlqwen bench`: rows like llama-bench's."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import IntList, device_options, draft_options, model_option, verbose_option
from .terminal import Reporter, peak_rss_bytes

if TYPE_CHECKING:
    from mtlqwen.bench import Row
    from mtlqwen.engine import Engine

COLUMNS = ("model", "size", "params", "device", "threads", "batch", "test", "t/s")


@click.command()
@click.pass_obj
@model_option
@click.option(
    "-p",
    "--prompt",
    type=IntList(minimum=0),
    multiple=True,
    default=["512"],
    help="Prompt lengths, 0 for none; may be repeated.  [default: 512]",
)
@click.option(
    "-n",
    "--generate",
    type=IntList(minimum=0),
    multiple=True,
    default=["64"],
    help="Generated tokens, 0 for none; may be repeated.  [default: 64]",
)
@click.option(
    "--batch",
    type=IntList(minimum=1),
    multiple=True,
    default=["1"],
    help="Requests at once; may be repeated.  [default: 1]",
)
@click.option(
    "-r",
    "--repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measured runs of each test, after one that warms up.",
)
@click.option("--pass-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@device_options
@draft_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@verbose_option
def bench(
    engine_options: dict[str, Any],
    model: Path | None,
    prompt: tuple[list[int], ...],
    generate: tuple[list[int], ...],
    batch: tuple[list[int], ...],
    repetitions: int,
    pass_tokens: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Measure prompt processing (pp) and generation (tg), in tokens per second of the batch."""
    reporter = Reporter(verbose)
    with reporter.working(f"loading {model or 'the demo model'}"):
        from mtlqwen.bench import cases, measure
        from mtlqwen.load import close_engine, demo_model_path, open_engine

        wanted = cases(*(list(chain(*lists)) for lists in (prompt, generate, batch)))
        if not wanted:
            raise click.UsageError("nothing to measure: give -p or -n a number above 0")
        engine = open_engine(
            model or demo_model_path(),
            ctx=max(case.num_prompt + case.num_generated for case in wanted) + 1,
            max_slots=max(case.batch for case in wanted),
            pass_tokens=pass_tokens,
            prefix_memory=0,
            **engine_options,
        )
    try:
        about = _about(engine, model or demo_model_path())
        rows = []
        if not as_json:
            click.echo("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
        for row in measure(engine, wanted, repetitions):
            rows.append(_as_dict(row))
            if not as_json:
                click.echo(_line(about, row))
        if as_json:
            speculation = _speculation(engine) if engine.speculation is not None else {}
            report = {**about, **speculation, "peak_rss_bytes": peak_rss_bytes(), "rows": rows}
            click.echo(json.dumps(report))
        reporter.drafts(engine.stats)
    finally:
        close_engine(engine)


def _about(engine: Engine, model: Path) -> dict[str, Any]:
    tensors = engine.runner.gguf.tensors.values()
    info = engine.runner.device.info
    return {
        "model": model.stem,
        "size_bytes": sum(tensor.num_bytes for tensor in tensors),
        "num_params": sum(math.prod(tensor.shape) for tensor in tensors),
        "device": f"{engine.runner.device.kind} {info.isa}",
        "threads": info.num_threads,
    }


def _speculation(engine: Engine) -> dict[str, Any]:
    stats = engine.stats
    return {
        "tokens_per_pass": stats.tokens_per_pass,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
    }


def _as_dict(row: Row) -> dict[str, Any]:
    return {
        "test": row.case.name,
        "num_prompt": row.case.num_prompt,
        "num_generated": row.case.num_generated,
        "batch": row.case.batch,
        "tokens_per_second": row.mean,
        "spread": row.spread,
        "samples": row.rates,
    }


def _line(about: dict[str, Any], row: Row) -> str:
    cells = (
        about["model"],
        f"{about['size_bytes'] / 2**20:.1f} MiB",
        f"{about['num_params'] / 1e6:.1f} M",
        about["device"],
        str(about["threads"]),
        str(row.case.batch),
        row.case.name,
        f"{row.mean:.2f} ± {row.spread:.2f}",
    )
    return "| " + " | ".join(cells) + " |"
