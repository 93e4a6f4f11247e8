"""What the engine's choices cost and save, as tables: pass capacity, block size, shared beginnings.

    python bench/serving.py MODEL.gguf passes|blocks|prefixes [-t 2]

Random token ids through Engine.step; no tokenizer, no HTTP.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np

from mtlqwen.device import Device
from mtlqwen.engine import Engine
from mtlqwen.runner import Runner
from mtlqwen.sampling import SamplingParams

RNG = np.random.default_rng(0)


class Timed:
    """A request and when its tokens came."""

    def __init__(self, engine: Engine, ids, num_tokens: int, checkpoints=()):
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.cached = 0
        self.done = False
        self.start = perf_counter()
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        engine.submit(ids, params, checkpoints=checkpoints, on_output=self._take)

    def _take(self, output) -> None:
        self.times += [perf_counter()] * len(output.tokens)
        self.tokens += output.tokens
        self.cached = output.cached_tokens
        self.done = output.finish_reason is not None

    @property
    def first_s(self) -> float:
        return self.times[0] - self.start


def open_engine(model: str, threads: int, *, prefix: bool = False, **options) -> Engine:
    device = Device.open("cpu", num_threads=threads)
    runner = Runner(device, model, max_context=8192, **options)
    return Engine(runner, prefix_memory_bytes=None if prefix else 0)


def close(engine: Engine) -> None:
    engine.close()
    engine.runner.close()
    engine.runner.device.close()


def run(engine: Engine, *requests: Timed) -> None:
    while not all(request.done for request in requests):
        engine.step()


def prompt(num_tokens: int) -> list[int]:
    return RNG.integers(0, 4000, num_tokens).tolist()


def passes(model: str, threads: int) -> None:
    """A lone prompt of 4,096 tokens, and four of 1,024 beside four sequences that generate."""
    print("| pass tokens | 4k prompt s | four 1k prompts, last first token s | token gap median ms "
          "| token gap p99 ms |\n|---|---|---|---|---|")  # fmt: skip
    for capacity in (128, 256, 384, 512):
        engine = open_engine(model, threads, pass_tokens=capacity)
        lone = Timed(engine, prompt(4096), 1)
        run(engine, lone)
        streams = [Timed(engine, prompt(32), 4000) for _ in range(4)]
        while min(len(stream.times) for stream in streams) < 4:
            engine.step()
        num_before = [len(stream.times) for stream in streams]
        prompts = [Timed(engine, prompt(1024), 1) for _ in range(4)]
        run(engine, *prompts)
        gaps = np.concatenate(
            [np.diff(s.times[n - 1 :]) for s, n in zip(streams, num_before, strict=True)]
        )
        last = max(request.first_s for request in prompts)
        print(f"| {capacity} | {lone.first_s:.2f} | {last:.2f} | {1e3 * np.median(gaps):.0f} | "
              f"{1e3 * np.quantile(gaps, 0.99):.0f} |", flush=True)  # fmt: skip
        close(engine)


def blocks(model: str, threads: int) -> None:
    """Cost of binding blocks while prompts are read, and what the last block of each wastes."""
    print("| block tokens | 8 prompts of 1,000 s | reserve us a block | share of the time | "
          "wasted K/V of 8 mixed requests |\n|---|---|---|---|---|")  # fmt: skip
    for block in (64, 128, 256):
        engine = open_engine(model, threads, block_tokens=block)
        requests = [Timed(engine, prompt(1000), 1) for _ in range(8)]
        run(engine, *requests)
        seconds = max(request.times[-1] for request in requests) - requests[0].start
        reserve_ns = engine.stats.step_ns["reserve"]
        num_blocks = 8 * -(-1000 // block)
        lengths = np.random.default_rng(1).integers(100, 2000, 8)
        waste = 1 - lengths.sum() / (-(-lengths // block) * block).sum()
        cost_us, share = reserve_ns / num_blocks / 1e3, reserve_ns / 1e9 / seconds
        print(
            f"| {block} | {seconds:.2f} | {cost_us:.1f} | {share:.2%} | {waste:.1%} |", flush=True
        )
        close(engine)


def prefixes(model: str, threads: int) -> None:
    """Time to the first token where the beginning is known."""
    print("| case | first token s | of a cold run | cached tokens |\n|---|---|---|---|")

    def row(name: str, request: Timed, cold: float) -> None:
        print(f"| {name} | {request.first_s:.3f} | 1/{cold / request.first_s:.1f} | "
              f"{request.cached} |", flush=True)  # fmt: skip

    cold = statistics.median(cold_run(model, threads) for _ in range(3))
    engine = open_engine(model, threads, prefix=True)
    system = prompt(2000)
    for name in ("chat, system turn of 2,000 + 48: first user", "second user", "third user"):
        request = Timed(engine, system + prompt(48), 1, checkpoints=[2000])
        run(engine, request)
        row(name, request, cold)
    shared = prompt(2000)
    for name in ("raw ids, 2,000 of 2,048 shared: first", "second", "third", "fourth"):
        request = Timed(engine, shared + prompt(48), 1)
        run(engine, request)
        row(name, request, cold)
    both = prompt(2000)
    computed = engine.stats.computed_tokens
    pair = [Timed(engine, both + prompt(48), 1, checkpoints=[2000]) for _ in range(2)]
    run(engine, *pair)
    for name, request in zip(("two at once, unseen: one", "the other"), pair, strict=True):
        row(name, request, cold)
    print(f"\nthe two together computed {engine.stats.computed_tokens - computed} tokens")
    history = prompt(1000)
    for turn in range(3):
        # As a chat renders: the reply becomes part of the history, then a user turn follows.
        request = Timed(engine, history, 100, checkpoints=[len(history) - 4])
        run(engine, request)
        print(f"turn {turn + 1}: {len(history)} tokens, computed {len(history) - request.cached}")
        history = [*history, *request.tokens, *prompt(60)]
    close(engine)


def cold_run(model: str, threads: int) -> float:
    engine = open_engine(model, threads)
    request = Timed(engine, prompt(2048), 1)
    run(engine, request)
    close(engine)
    return request.first_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("table", choices=("passes", "blocks", "prefixes"))
    parser.add_argument("-t", "--threads", type=int, default=2)
    options = parser.parse_args()
    tables = {"passes": passes, "blocks": blocks, "prefixes": prefixes}
    tables[options.table](options.model, options.threads)


if __name__ == "__main__":
    main()
