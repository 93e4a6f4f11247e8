"""A check is worth what it catches: faults planted in the kernels must not get past it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .case_file import Case, KernelFailure, run_cases
from .cases_small import small_cases
from .mutant import Mutant
from .mutants_drafter import MUTANTS as DRAFTER_MUTANTS
from .mutants_rows import MUTANTS as ROW_MUTANTS
from .mutants_sequences import MUTANTS as SEQUENCE_MUTANTS

CASES = small_cases()
MUTANTS = ROW_MUTANTS + SEQUENCE_MUTANTS + DRAFTER_MUTANTS

REPORTS = {
    "tsan": "ThreadSanitizer: data race",
    "asan": ("AddressSanitizer", "runtime error"),
    "error": "barrier",
}


@pytest.fixture(scope="module")
def changed_kernels(emulator, tmp_path_factory):
    """A copy of the kernels for a mutant to be planted in."""
    root = tmp_path_factory.mktemp("mutant")

    def plant(mutant: Mutant) -> Path:
        directory = root / mutant.name.replace(" ", "_")
        shutil.copytree(emulator.KERNELS, directory / "metal")
        shutil.copy(emulator.KERNELS.parent / "args.h", directory)
        path = directory / "metal" / mutant.file
        text = path.read_text()
        assert text.count(mutant.old) == 1, (
            f"{mutant.name}: {text.count(mutant.old)} places to plant it"
        )
        path.write_text(text.replace(mutant.old, mutant.new))
        return directory / "metal"

    return plant


def cases_of(mutant: Mutant) -> list[Case]:
    key, _, word = mutant.case.partition(" ")
    return [case for case in CASES[key] if word in case.name]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_fault_is_caught(emulator, changed_kernels, mutant: Mutant):
    directory = changed_kernels(mutant)
    mode = mutant.caught_by if mutant.caught_by in emulator.MODES else "plain"
    cases = cases_of(mutant)

    def library(name: str, kernels: frozenset[str]) -> Path:
        return emulator.library(directory / f"{name}.metal", mode, kernels)

    try:
        answers = run_cases(cases, [emulator.driver(mode)], library, emulator.ENVIRONMENT[mode])
    except KernelFailure as failure:
        assert mutant.caught_by != "values", f"not by its values: {failure}"
        report = REPORTS[mutant.caught_by]
        assert any(
            word in str(failure) for word in ([report] if isinstance(report, str) else report)
        )
        return
    assert mutant.caught_by == "values", f"{mutant.caught_by} said nothing"
    with pytest.raises(AssertionError):
        for case, answer in zip(cases, answers, strict=True):
            case.check(answer)
