"""The demo model, warm and shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mtlqwen import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """Shared by tests that do not care what the prefix cache holds."""
    with LLM(ctx=8192, threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def cold_llm() -> Iterator[LLM]:
    """Never restores anything: what it says is the oracle."""
    with LLM(ctx=8192, prefix_memory=0, threads=1) as llm:
        yield llm
