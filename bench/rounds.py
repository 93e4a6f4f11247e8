"""Runs that alternate, and tables of what they gave: medians of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median

import click
from generation import Generation

Run = Callable[[], Generation]
Rounds = list[dict[str, Generation]]  # each run once, by name; the first is the plain one


def alternate(runs: Mapping[str, Run], num_rounds: int) -> Rounds:
    """The rounds, after one that warms up. SystemExit if the tokens of two runs differ."""
    rounds = [{name: run() for name, run in runs.items()} for _ in range(1 + num_rounds)]
    first, *others = runs
    for results in rounds:
        for name in others:
            if results[name].answers != results[first].answers:
                raise SystemExit(f"the tokens of {name!r} are not those of {first!r}")
    return rounds[1:]


def rate(rounds: Rounds, name: str) -> str:
    return f"{median(results[name].rate for results in rounds):.1f}"


def ratio(rounds: Rounds, name: str) -> str:
    return f"{median(results[name].rate / results['plain'].rate for results in rounds):.2f}"


def tokens_per_pass(rounds: Rounds, name: str) -> str:
    """Plain passes that one pass stands for."""
    return f"{median(results['plain'].num_rows / results[name].num_rows for results in rounds):.2f}"


def print_table(about: str, columns: str, rows: Iterable[list[str]]) -> None:
    names = columns.split(", ")
    click.echo(f"{about}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for row in rows:
        click.echo(f"| {' | '.join(row)} |")
    click.echo()
