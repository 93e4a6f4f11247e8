"""Fixtures of the protocol tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from serving import Served, serving

from mtlqwen.chat import ChatTemplate
from mtlqwen.gguf import open_gguf
from mtlqwen.load import demo_model_path
from mtlqwen.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def demo_text() -> tuple[Tokenizer, ChatTemplate]:
    gguf = open_gguf(demo_model_path())
    tokenizer = Tokenizer.from_gguf(gguf)
    return tokenizer, ChatTemplate.from_gguf(gguf, tokenizer)


@pytest.fixture
def serve(demo_text: tuple[Tokenizer, ChatTemplate]) -> Iterator[Callable[..., Served]]:
    """Starts a server whose engine says what it is given."""
    with serving(demo_text) as start:
        yield start
