"""The same file, threads and minutes: mtlqwen beside llama.cpp, alternating; medians as a table.

    python bench/against_llama.py MODEL.gguf --llama DIR_OF_LLAMA_BINARIES [-t 2] [-r 5]

llama-bench gives pp and tg, llama-batched-bench the rate of 8 sequences. Each figure is the median
of `-r` alternated runs; a plain read of memory is timed beside every round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROMPT, GENERATED, BATCH = 512, 64, 8


def main() -> None:
    options = parse()
    rounds: dict[str, list[dict[str, float]]] = {"llama.cpp": [], "mtlqwen": []}
    bandwidth = []
    for number in range(options.repetitions):
        bandwidth.append(read_bandwidth())
        rounds["llama.cpp"].append(llama(options))
        rounds["mtlqwen"].append(ours(options))
        latest = {name: runs[-1] for name, runs in rounds.items()}
        print(f"round {number + 1}: {bandwidth[-1]:.1f} GB/s", latest, file=sys.stderr)
    print(
        f"{options.model.name}, {options.threads} threads, median of {options.repetitions}"
        f" alternated runs; one thread reads {statistics.median(bandwidth):.1f} GB/s\n"
    )
    print("| test | llama.cpp t/s | mtlqwen t/s | ratio | range of ratios |")
    print("|---|---|---|---|---|")
    for test in rounds["mtlqwen"][0]:
        peer, own = ([run[test] for run in rounds[name]] for name in ("llama.cpp", "mtlqwen"))
        ratios = [o / p for o, p in zip(own, peer, strict=True)]
        medians = (statistics.median(values) for values in (peer, own, ratios))
        cells = [test, *(f"{m:.2f}" for m in medians), f"{min(ratios):.2f}-{max(ratios):.2f}"]
        print("| " + " | ".join(cells) + " |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama", type=Path, required=True, help="llama.cpp's binaries")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--pass-tokens", type=int, default=128)
    return parser.parse_args()


def llama(options: argparse.Namespace) -> dict[str, float]:
    common = ["-m", str(options.model), "-t", str(options.threads)]
    bench = [str(options.llama / "llama-bench"), *common, "-p", str(PROMPT), "-n", str(GENERATED)]
    rates = {
        f"{'pp' if row['n_prompt'] else 'tg'}{row['n_prompt'] or row['n_gen']}": row["avg_ts"]
        for row in json.loads(output([*bench, "-r", "1", "-o", "json"]))
    }
    batched = [str(options.llama / "llama-batched-bench"), *common, "-tb", str(options.threads)]
    shape = ["-c", "4096", "-npp", "128", "-ntg", str(GENERATED), "-npl", str(BATCH)]
    table = output([*batched, *shape, "--output-format", "jsonl"])
    row = json.loads(next(line for line in table.splitlines() if line.startswith("{")))
    return rates | {f"tg{GENERATED} x {BATCH}": row["speed_tg"]}


def ours(options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "mtlqwen", "bench", "-m", str(options.model), "-r", "1"]
    command += [
        "--threads",
        str(options.threads),
        "--pass-tokens",
        str(options.pass_tokens),
        "--json",
    ]
    alone = json.loads(output([*command, "-p", str(PROMPT), "-n", str(GENERATED)]))
    batch = json.loads(output([*command, "-p", "0", "-n", str(GENERATED), "--batch", str(BATCH)]))
    rates = {row["test"]: row["tokens_per_second"] for row in alone["rows"]}
    return rates | {f"tg{GENERATED} x {BATCH}": batch["rows"][0]["tokens_per_second"]}


def output(command: list[str]) -> str:
    quiet = subprocess.DEVNULL
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=quiet, text=True
    ).stdout


def read_bandwidth(num_bytes: int = 1 << 29) -> float:
    """GB/s of one thread summing an array larger than any cache."""
    data = np.ones(num_bytes // 8)
    start = time.perf_counter()
    data.sum()
    return num_bytes / (time.perf_counter() - start) / 1e9


if __name__ == "__main__":
    main()
