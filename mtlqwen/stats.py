"""Counters and gauges of an engine, and where the time of its steps goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

from .speculation import MAX_DRAFTS

STAGES = ("admit", "draft", "schedule", "reserve", "pack", "run", "commit", "deliver", "retire")


@dataclass
class Stats:
    """Counters grow from the start of the engine on; gauges are of the moment they are read."""

    # requests
    running: int = 0  # gauge
    waiting: int = 0  # gauge
    submitted: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "cancelled": 0, "error": 0}
    )
    preemptions: int = 0
    # tokens
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of those, restored from the prefix cache
    computed_tokens: int = 0  # rows of all steps
    generated_tokens: int = 0
    generating_rows: int = 0  # sequences that generated, summed over all steps
    drafted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)  # by position
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)  # of those, by position
    # prefix cache
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_entries: int = 0  # gauge: entries in memory
    prefix_bytes: int = 0  # gauge: their GDN snapshots
    prefix_evictions: int = 0
    # K/V memory, in bundles of one block
    bundles_max: int = 0  # the budget
    bundles_committed: int = 0  # gauge: in heap chunks that exist
    bundles_bound: int = 0  # gauge: bound by running requests
    bundles_cached: int = 0  # gauge: held by prefix entries alone
    heap_chunks: int = 0  # gauge
    mappings: int = 0  # gauge: of the operating system, for K/V
    # time
    steps: int = 0
    step_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    device_ns: int = 0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass chose for a sequence that generates, on average: 1 without drafts. The
        token that ends an answer, which generated_tokens leaves out, is one of them.
        """
        return 1 + sum(self.accepted) / self.generating_rows if self.generating_rows else 0.0

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        for position in range(num_drafts):
            self.drafted[position] += 1
            self.accepted[position] += position < num_accepted

    @property
    def host_ns(self) -> int:
        """Time of all steps that the device did not work."""
        return sum(self.step_ns.values()) - self.device_ns


class StepClock:
    """Adds the time since the last lap to a stage."""

    def __init__(self, stage_ns: dict[str, int]):
        self._stage_ns = stage_ns
        self._last_ns = 0

    def start(self) -> None:
        self._last_ns = perf_counter_ns()

    def lap(self, stage: str) -> None:
        now_ns = perf_counter_ns()
        self._stage_ns[stage] += now_ns - self._last_ns
        self._last_ns = now_ns
