"""The Metal kernels on an NVIDIA GPU: python -m metal.cuda.measure
build|table|memcheck|racecheck|bandwidth DIR

`build` fills DIR with libraries; the others run them. Every command prints text and ends with
status 1 if something is wrong. Needs NumPy, and nvcc for `build`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..case_file import Case, KernelFailure, run_cases
from ..cases_drafter import all_cases as drafter_cases
from ..cases_paged import all_cases as paged_cases
from ..cases_rows import all_cases as row_cases
from ..cases_sequences import all_cases as sequence_cases
from ..cases_small import small_cases
from .bandwidth import print_bandwidth
from .build import build_all, library_name

SANITIZER = ["compute-sanitizer", "--error-exitcode=9", "--racecheck-report=analysis", "--tool"]


def run_group(cases: Sequence[Case], directory: Path, prefix: Sequence[str] = ()) -> list[str]:
    """What is wrong with cases that use the same libraries; one process runs them all."""

    def library(name: str, kernels: frozenset[str]) -> Path:
        return directory / f"{library_name(name, next(iter(kernels)))}.so"

    driver = [*prefix, str(directory / "driver")]
    try:
        answers = run_cases(cases, driver, library, dict(os.environ))
    except KernelFailure as failure:
        return [f"{cases[0].name} and its group: {failure}"]
    wrong = []
    for case, answer in zip(cases, answers, strict=True):
        try:
            case.check(answer)
        except AssertionError as error:
            wrong.append(str(error))
    return wrong


def run_all(cases: Sequence[Case], directory: Path, prefix: Sequence[str] = ()) -> int:
    """Number of faults; prints them and what was run."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        key = tuple(
            sorted(library_name(name, kernel) for name, ks in case.kernels.items() for kernel in ks)
        )
        groups.setdefault(key, []).append(case)
    num_wrong = 0
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda group: run_group(group, directory, prefix), groups.values())
        for group, wrong in zip(groups.values(), results, strict=True):
            for case in group:
                print(f"  ran {case.name}")
            for line in wrong:
                print(f"WRONG {line}")
            num_wrong += len(wrong)
    print(f"{len(cases)} cases, {num_wrong} faults")
    return num_wrong


def main(command: str, directory: Path) -> int:
    if command == "build":
        build_all(directory)
        return 0
    if command == "table":
        cases = row_cases() + sequence_cases() + drafter_cases() + paged_cases()
        return run_all(cases, directory)
    if command in ("memcheck", "racecheck"):
        cases = [case for group in small_cases().values() for case in group]
        return run_all(cases, directory, [*SANITIZER, command])
    if command == "bandwidth":
        return print_bandwidth(directory)
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], Path(sys.argv[2])) else 0)
