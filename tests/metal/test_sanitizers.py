"""The kernels under ThreadSanitizer (barriers, races between threadgroups) and AddressSanitizer
(with alignment), at small odd sizes.
"""

from __future__ import annotations

import pytest

from .case_file import run_cases
from .cases_small import small_cases

CASES = small_cases()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["tsan", "asan"])
def test_sanitizer_has_nothing_to_report(emulator, mode: str, name: str):
    def library(stem: str, kernels: frozenset[str]):
        return emulator.library(emulator.KERNELS / f"{stem}.metal", mode, kernels)

    cases = CASES[name]
    for case in cases:
        case.seed = 1
    answers = run_cases(cases, [emulator.driver(mode)], library, emulator.ENVIRONMENT[mode])
    for case, answer in zip(cases, answers, strict=True):
        case.check(answer)
