"""llama.cpp, where llama-cpp-python is installed, reads our files and continues them alike."""

import json
from pathlib import Path

import numpy as np
import pytest

from mtlqwen.convert import convert_gguf

pytestmark = pytest.mark.peer
llama_cpp = pytest.importorskip("llama_cpp")

DATA = Path(__file__).parents[1] / "data"
CLEAR_MARGIN = 0.02  # logits: below it float32 rounding may decide between the first two


@pytest.fixture(scope="module")
def prompts():
    return json.loads((DATA / "reference.json").read_text())["prompts"]


def load(path):
    return llama_cpp.Llama(str(path), n_ctx=2048, n_threads=1, logits_all=True, verbose=False)


def test_greedy_tokens_of_an_f32_file_are_the_reference_up_to_its_first_unclear_step(
    prompts, tmp_path
):
    path = tmp_path / "f32.gguf"
    convert_gguf(DATA / "demo-bf16.gguf", path, "F32")
    for prompt in prompts:
        model = load(path)  # a new one: it cannot forget the DeltaNet state of the last prompt
        unclear = np.array(prompt["margins"]) < CLEAR_MARGIN
        length = int(unclear.argmax()) if unclear.any() else len(prompt["tokens"])
        text = prompt["prompt_text"].encode()
        assert model.tokenize(text, add_bos=False, special=True) == prompt["prompt"]
        tokens = model.generate(prompt["prompt"], temp=0.0)
        found = [token for token, _ in zip(tokens, range(length), strict=False)]
        assert found == prompt["tokens"][:length], prompt["name"]


@pytest.mark.parametrize("file_type", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M"])
def test_every_file_type_is_read(prompts, tmp_path, file_type):
    path = tmp_path / "model.gguf"
    convert_gguf(DATA / "demo-bf16.gguf", path, file_type)
    model = load(path)
    code = next(prompt for prompt in prompts if prompt["name"] == "code")
    tokens = model.generate(code["prompt"], temp=0.0)
    assert [token for token, _ in zip(tokens, range(20), strict=False)] == code["tokens"][:20]
