"""The choice of how many tokens to draft, without a clock: `python bench/draft_policy.py`.

The demo model answers the prompts of bench/demo_prompts.py, one after the other with one engine,
raw text last. A pass counts as one of a single row, plus so many percent for each further row and
for having drafts, instead of the time it took: so the choices are the same on every machine. The
table has, by kind of prompt, plain passes over what the passes with drafts cost.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from demo_prompts import RAW_TEXT
from generation import generate
from rounds import print_table
from speculation import DEMO_TOKENS, demo_engine, demo_prompts

from mtlqwen.engine import Engine

PASS_NS = 1_000_000  # of a single row
COSTS = {  # in percent: of a further row, of having drafts
    "DFlash": ((6, 25), (15, 30), (30, 30)),
    "ngram": ((6, 0), (15, 0), (30, 0)),
}
OPTIONS: dict[str, dict[str, Any]] = {"DFlash": {"drafter": "demo"}, "ngram": {"draft": "ngram"}}


class CountedPasses:
    """Puts what a pass costs in place of the time that an engine's passes took."""

    def __init__(self, engine: Engine, row_percent: int, draft_percent: int):
        self.runner = engine.runner
        self.row_percent, self.draft_percent = row_percent, draft_percent
        self.spent_ns = 0
        self._run = engine.runner.run
        engine.runner.run = self.run  # type: ignore[method-assign]

    def run(self, map_ops: Any = None) -> None:
        self._run(map_ops)
        header, drafting = self.runner.batch.header, self.runner.drafting
        num_rows, num_logit_rows = int(header[0]), int(header[2])
        drafts = drafting is not None and drafting.drafts.header[0] > 0
        percent = 100 + self.row_percent * (num_rows - 1) + self.draft_percent * drafts
        self.runner.device_ns = percent * PASS_NS // 100
        if num_rows == num_logit_rows:  # not of a prompt
            self.spent_ns += self.runner.device_ns


def passes_by_kind(
    engine: Engine, passes: CountedPasses, prompts: dict[str, list[list[int]]], ends: frozenset[int]
) -> dict[str, float]:
    """What the answers cost, in plain passes."""
    costs = {}
    for kind, ids in prompts.items():
        before_ns = passes.spent_ns
        generate(engine, ids, DEMO_TOKENS, stop_ids=() if kind == RAW_TEXT else ends)
        costs[kind] = (passes.spent_ns - before_ns) / PASS_NS
    return costs


def gains(plain: dict[str, float], drafted: dict[str, float]) -> list[str]:
    """The ratio of each kind, and of the chat kinds together."""
    ratios = [plain[kind] / cost for kind, cost in drafted.items()]
    chat = [sum(costs.values()) - costs[RAW_TEXT] for costs in (plain, drafted)]
    return [f"{ratio:.2f}" for ratio in (*ratios, chat[0] / chat[1])]


def main() -> None:
    with ExitStack() as stack:
        engine = demo_engine(stack, 2)
        prompts, ends = demo_prompts(engine)
        plain = passes_by_kind(engine, CountedPasses(engine, 0, 0), prompts, ends)
        rows = []
        for name, all_costs in COSTS.items():
            for costs in all_costs:
                engine = demo_engine(stack, 2, **OPTIONS[name])
                drafted = passes_by_kind(engine, CountedPasses(engine, *costs), prompts, ends)
                rows.append([name, *(f"{cost} %" for cost in costs), *gains(plain, drafted)])
        columns = f"drafts, a row, drafting, {', '.join(prompts)}, chat kinds"
        print_table(f"Answers of at most {DEMO_TOKENS} tokens:", columns, rows)


if __name__ == "__main__":
    main()
