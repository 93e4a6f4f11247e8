"""The bundled demo model's tokenizer and chat template."""

import json
from pathlib import Path

import pytest

import mtlqwen
from mtlqwen.chat import ChatTemplate
from mtlqwen.gguf import open_gguf
from mtlqwen.tokenizer import Tokenizer

DEMO = Path(mtlqwen.__file__).parent / "data" / "demo-q8_0.gguf"
DATA = Path(__file__).parent / "data"
REFERENCE = Path(__file__).parents[1] / "data" / "reference.json"


@pytest.fixture(scope="session")
def demo_gguf():
    with open_gguf(DEMO) as gguf:
        yield gguf


@pytest.fixture(scope="session")
def tokenizer(demo_gguf):
    return Tokenizer.from_gguf(demo_gguf)


@pytest.fixture(scope="session")
def template(demo_gguf, tokenizer):
    return ChatTemplate.from_gguf(demo_gguf, tokenizer)


@pytest.fixture(scope="session")
def reference_prompts():
    """Name -> text and ids of the 20 prompts, as transformers rendered and tokenised them."""
    prompts = json.loads(REFERENCE.read_text())["prompts"]
    return {prompt["name"]: (prompt["prompt_text"], prompt["prompt"]) for prompt in prompts}
