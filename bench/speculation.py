"""What speculation gains, as Markdown tables.

    python bench/speculation.py kinds                 the demo pair, by kind of prompt
    python bench/speculation.py widths                the demo pair, by width and batch
    python bench/speculation.py forced MODEL.gguf --drafter DRAFTER.gguf
                                                      drafts that are right as often as one chooses
    python bench/speculation.py peer --llama DIR      the demo pair beside llama.cpp

Greedy tokens behind the first of each answer; reading prompts does not count. Plain and speculative
runs alternate after one run of each that warms up, figures are medians of `-r` rounds, ratios of
the ratios within a round, and a run whose tokens differ from the plain ones ends the program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
from demo_prompts import RAW_TEXT, prompts_by_kind
from forced_drafts import ForcedBench
from generation import Generation, generate
from llama_server import LlamaServer
from rounds import Rounds, alternate, print_table, rate, ratio, tokens_per_pass

from mtlqwen.chat import ChatTemplate
from mtlqwen.engine import Engine
from mtlqwen.load import close_engine, demo_drafter_path, demo_model_path, open_engine
from mtlqwen.speculation import MAX_DRAFTS
from mtlqwen.tokenizer import Tokenizer

DEMO_TOKENS = 96  # of an answer, at most
DEMO_CONTEXT = 1024
DRAFTING = ("DFlash", "ngram")
LOOKUP_MATCH = 3  # tokens that prompt lookup wants to find again, here and told to llama.cpp


def demo_engine(stack: ExitStack, threads: int, **options: Any) -> Engine:
    model = demo_model_path()
    options |= {"threads": threads, "ctx": DEMO_CONTEXT, "prefix_memory": 0}
    engine = open_engine(model, **options)
    stack.callback(close_engine, engine)
    return engine


def demo_engines(stack: ExitStack, threads: int) -> dict[str, Engine]:
    return {
        "plain": demo_engine(stack, threads),
        "DFlash": demo_engine(stack, threads, drafter="demo"),
        "ngram": demo_engine(stack, threads, draft="ngram"),
    }


def about_demo(engine: Engine, num_rounds: int) -> str:
    num_threads = engine.runner.device.info.num_threads
    return (
        f"Demo pair, {num_threads} threads, answers of at most {DEMO_TOKENS} tokens,"
        f" {num_rounds} rounds"
    )


def demo_prompts(engine: Engine) -> tuple[dict[str, list[list[int]]], frozenset[int]]:
    """Prompts by kind, and what ends an answer."""
    tokenizer = Tokenizer.from_gguf(engine.runner.gguf)
    template = ChatTemplate.from_gguf(engine.runner.gguf, tokenizer)
    return prompts_by_kind(tokenizer, template), frozenset(tokenizer.stop_ids)


class IntList(click.ParamType):
    name = "numbers"

    def convert(self, value: Any, *_: Any) -> list[int]:
        return [int(number) for number in value.split(",")] if isinstance(value, str) else value


threads_option = click.option("-t", "--threads", default=0, help="0: all cores.")
rounds_option = click.option("-r", "--rounds", default=5, show_default=True)


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    pass


@main.command()
@threads_option
@rounds_option
def kinds(threads: int, rounds: int) -> None:
    """The demo pair by kind of prompt: batch 1, width auto."""
    with ExitStack() as stack:
        engines = demo_engines(stack, threads)
        prompts, stop_ids = demo_prompts(engines["plain"])
        print_table(
            f"{about_demo(engines['plain'], rounds)}, batch 1, width auto",
            "kind, plain t/s, "
            + ", ".join(f"{name} t/s, ratio, tokens per pass" for name in DRAFTING),
            kind_rows(engines, prompts, stop_ids, rounds),
        )


def kind_rows(
    engines: dict[str, Engine],
    prompts: dict[str, list[list[int]]],
    stop_ids: frozenset[int],
    num_rounds: int,
) -> Iterable[list[str]]:
    chat = [{name: Generation() for name in engines} for _ in range(num_rounds)]
    for kind, ids in prompts.items():
        ends = () if kind == RAW_TEXT else stop_ids
        runs = {
            name: partial(generate, engine, ids, DEMO_TOKENS, stop_ids=ends)
            for name, engine in engines.items()
        }
        rounds = alternate(runs, num_rounds)
        yield kind_row(kind, rounds)
        if kind != RAW_TEXT:
            for sums, results in zip(chat, rounds, strict=True):
                for name in sums:
                    sums[name].add(results[name])
    yield kind_row("all but raw text", chat)


def kind_row(kind: str, rounds: Rounds) -> list[str]:
    cells = [kind, rate(rounds, "plain")]
    for name in DRAFTING:
        cells += [rate(rounds, name), ratio(rounds, name), tokens_per_pass(rounds, name)]
    return cells


@main.command()
@threads_option
@rounds_option
@click.option("--batches", type=IntList(), default="1,4,8", show_default=True)
@click.option("--widths", type=IntList(), default=",".join(map(str, range(1, MAX_DRAFTS + 1))))
def widths(threads: int, rounds: int, batches: list[int], widths: list[int]) -> None:
    """The demo pair by width and batch: ratio to plain."""
    with ExitStack() as stack:
        plain = demo_engine(stack, threads)
        by_kind, stop_ids = demo_prompts(plain)
        chat = [texts for kind, texts in by_kind.items() if kind != RAW_TEXT]
        prompts = [ids for texts in zip(*chat, strict=True) for ids in texts][: max(batches)]
        print_table(
            f"{about_demo(plain, rounds)}, {len(prompts)} prompts: ratio to plain",
            "width, tokens per pass" + "".join(f", batch {batch}" for batch in batches),
            width_rows(plain, prompts, stop_ids, rounds, batches, widths),
        )


def width_rows(
    plain: Engine,
    prompts: list[list[int]],
    stop_ids: frozenset[int],
    num_rounds: int,
    batches: list[int],
    widths: list[int],
) -> Iterable[list[str]]:
    threads = plain.runner.device.info.num_threads
    for width in widths:
        with ExitStack() as stack:
            engine = demo_engine(stack, threads, drafter="demo", draft_width=width)
            cells = [str(width)]
            for batch in batches:
                run = partial(generate, batch=batch, stop_ids=stop_ids)
                runs = {
                    name: partial(run, each, prompts, DEMO_TOKENS)
                    for name, each in (("plain", plain), ("DFlash", engine))
                }
                rounds = alternate(runs, num_rounds)
                if batch == batches[0]:
                    cells.append(tokens_per_pass(rounds, "DFlash"))
                cells.append(ratio(rounds, "DFlash"))
            yield cells


@main.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--drafter", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-n", "--tokens", default=32, show_default=True, help="Of each answer.")
@click.option("--acceptance", type=IntList(), default="50,70,90", show_default=True, help="In %.")
@click.option("--batches", type=IntList(), default="1,4,8", show_default=True)
@click.option("--widths", type=IntList(), default="1,2,3,5,7,11,15", show_default=True)
@threads_option
@rounds_option
def forced(
    model: Path,
    drafter: Path | None,
    tokens: int,
    acceptance: list[int],
    batches: list[int],
    widths: list[int],
    threads: int,
    rounds: int,
) -> None:
    """Forced acceptance: each draft is right with a chosen probability, if those before it are.

    "DFlash" pays for the drafter's pass, "free" drafts cost nothing, as prompt lookup's do.
    """
    with ExitStack() as stack:
        bench = ForcedBench(stack, model, drafter, threads, tokens, rounds)
        about = f"{model.name}, {bench.num_threads} threads, {tokens} tokens, {rounds} rounds"
        names = bench.names
        columns = [f"{name} t/s, ratio, tokens per pass" for name in names]
        print_table(
            f"{about}, width auto",
            ", ".join(["batch, acceptance %, plain t/s", *columns]),
            (bench.auto_row(batch, share) for batch in batches for share in acceptance),
        )
        gains = "".join(f", at {share} %" for share in acceptance)
        print_table(
            f"{about}: time of a pass over that of a plain one, and what that gives",
            ", ".join(["batch, width", *(f"{name} pass{gains}" for name in names)]),
            (row for batch in batches for row in bench.width_rows(batch, widths, acceptance)),
        )


@main.command()
@click.option(
    "--llama",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="llama.cpp's binaries.",
)
@click.option("--draft-max", default=3, show_default=True, help="llama.cpp's drafts per pass.")
@threads_option
@rounds_option
def peer(llama: Path, draft_max: int, threads: int, rounds: int) -> None:
    """The demo pair beside llama.cpp's server: plain, DFlash and prompt lookup, batch 1."""
    with ExitStack() as stack:
        engines = demo_engines(stack, threads)
        prompts, stop_ids = demo_prompts(engines["plain"])
        num_threads = engines["plain"].runner.device.info.num_threads
        servers = llama_servers(stack, llama, num_threads, draft_max)
        columns = ", ".join(
            f"{who} plain t/s, DFlash t/s, ratio, ngram t/s, ratio"
            for who in ("mtlqwen", "llama.cpp")
        )
        print_table(
            f"{about_demo(engines['plain'], rounds)}; llama.cpp drafts at most {draft_max}",
            f"kind, {columns}",
            (
                peer_row(kind, ids, () if kind == RAW_TEXT else stop_ids, engines, servers, rounds)
                for kind, ids in prompts.items()
            ),
        )


def peer_row(
    kind: str,
    prompts: list[list[int]],
    stop_ids: Collection[int],
    engines: dict[str, Engine],
    servers: dict[str, LlamaServer],
    num_rounds: int,
) -> list[str]:
    ours = {
        name: partial(generate, engine, prompts, DEMO_TOKENS, stop_ids=stop_ids)
        for name, engine in engines.items()
    }
    theirs = {
        name: partial(server.generate, prompts, DEMO_TOKENS, stop_ids=stop_ids)
        for name, server in servers.items()
    }
    cells = [kind]
    for runs in (ours, theirs):
        rounds = alternate(runs, num_rounds)
        cells.append(rate(rounds, "plain"))
        for name in DRAFTING:
            cells += [rate(rounds, name), ratio(rounds, name)]
    return cells


def llama_servers(
    stack: ExitStack, llama: Path, num_threads: int, draft_max: int
) -> dict[str, LlamaServer]:
    drafter = ["-md", str(demo_drafter_path()), "--spec-type", "draft-dflash"]
    drafter += ["--spec-draft-n-max", str(draft_max)]
    lookup = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(LOOKUP_MATCH)]
    lookup += ["--spec-ngram-simple-size-m", str(MAX_DRAFTS)]
    servers = {}
    for name, options in {"plain": [], "DFlash": drafter, "ngram": lookup}.items():
        server = LlamaServer(llama, demo_model_path(), num_threads, DEMO_CONTEXT, *options)
        stack.callback(server.close)
        servers[name] = server
    return servers


if __name__ == "__main__":
    main()
