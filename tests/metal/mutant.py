"""Faults planted in our own kernels, each of which a check must catch.

A mutant replaces `old`, which must occur exactly once in `file`, by `new`. `caught_by` names what
must see it: "values" (wrong or unwritten output in a plain run), "tsan", "asan", or "error" (the
emulator's own report).
"""

from __future__ import annotations

from dataclasses import dataclass

BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    case: str  # key of small_cases(), with a word to pick some of them: "linear_mm q8_0"
    caught_by: str
