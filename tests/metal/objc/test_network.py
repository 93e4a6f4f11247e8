"""The demo model on the metal device: the real shim, kernels and plans; tokens as on the cpu."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from mtlqwen.config import ModelConfig
from mtlqwen.device import Device
from mtlqwen.doctor import compare
from mtlqwen.generation import Completion
from mtlqwen.gguf import open_gguf
from mtlqwen.llm import LLM
from mtlqwen.load import demo_model_path
from mtlqwen.quants import dequantize
from mtlqwen.runner import Runner
from mtlqwen.sampling import SamplingParams
from tests.model.lone_sequence import LoneSequence, run_batch
from tests.model.qwen35_reference import Reference

MAX_GAP = 0.05  # between the two best logits, where another arithmetic may choose another token
SETTINGS = {"max_slots": 3, "max_context": 256, "pass_tokens": 20}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Three conversations; the longest takes more than one pass."""
    data = Path(__file__).parents[2] / "data" / "reference.json"
    found = [prompt["prompt"] for prompt in json.loads(data.read_text())["prompts"]]
    return [*found[:2], max((ids for ids in found if len(ids) < 60), key=len)]


def greedy(runner: Runner, prompts: list[list[int]], num_steps: int) -> list[np.ndarray]:
    """Logits of each sequence's prompt end and of the following tokens, decoded together."""
    sequences = [LoneSequence(runner, slot) for slot in range(len(prompts))]
    logits = [[sequence.feed(ids)[-1]] for sequence, ids in zip(sequences, prompts, strict=True)]
    for _ in range(num_steps):
        work = [
            (sequence, [int(rows[-1].argmax())])
            for sequence, rows in zip(sequences, logits, strict=True)
        ]
        run_batch(runner, work)
        for index, rows in enumerate(logits):
            assert runner.argmax[index] == runner.logits[index].argmax()
            rows.append(runner.logits[index].copy())
    for sequence in sequences:
        sequence.close()
    return [np.array(rows) for rows in logits]


def run_on(kind: str, prompts: list[list[int]], num_steps: int) -> list[np.ndarray]:
    with Device.open(kind) as device:
        runner = Runner(device, demo_model_path(), **SETTINGS)
        try:
            return greedy(runner, prompts, num_steps)
        finally:
            runner.close()


def reference_logits(ids: list[int]) -> np.ndarray:
    """Of the last token, in double precision over the dequantised tensors."""
    with open_gguf(demo_model_path()) as gguf:
        weights = {
            name: dequantize(gguf.array(name), info.type).reshape(info.shape)
            for name, info in gguf.tensors.items()
        }
        return Reference(ModelConfig.from_gguf(gguf), weights).forward(ids)[-1]


def test_demo_model_gives_the_tokens_of_the_cpu(fake, prompts):
    with fake.put_aside():
        wanted = run_on("cpu", prompts, 8)
    got = run_on("metal", prompts, 8)
    for cpu, metal in zip(wanted, got, strict=True):
        for cpu_row, metal_row in zip(cpu, metal, strict=True):
            second, first = np.sort(cpu_row)[-2:]
            if cpu_row.argmax() != metal_row.argmax():
                assert first - second < MAX_GAP
                break
    for ids, metal in zip(prompts, got, strict=True):
        np.testing.assert_allclose(metal[0], reference_logits(ids), atol=0.02)


def test_page_tables_give_the_logits_of_sparse_buffers(fake, prompts):
    wanted = run_on("metal", prompts[:1], 3)
    fake.set(version=1400)
    np.testing.assert_array_equal(run_on("metal", prompts[:1], 3), wanted)


def ask_twice(kind: str, **options) -> tuple[Completion, Completion, list[int]]:
    """An answer, that to a longer prompt with the same beginning, and the drafts accepted by
    position.
    """
    params = SamplingParams(max_tokens=10, logprobs=2)
    story = "Tell me a story about a fox and a lantern."
    with LLM(device=kind, ctx=512, max_slots=2, pass_tokens=32, **options) as llm:
        first = llm.generate(story, params)
        turns = [
            {"role": "user", "content": story},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And then?"},
        ]
        return first, llm.generate(turns, params), llm.engine.stats.accepted


@functools.cache
def cpu_answers() -> tuple[Completion, Completion, list[int]]:
    return ask_twice("cpu")


DFLASH, NGRAM = {"drafter": "demo", "draft_width": 5}, {"draft": "ngram", "draft_width": 3}


@pytest.mark.parametrize(
    ("options", "version"),
    [
        pytest.param({}, 2604, id="plain"),
        pytest.param(DFLASH, 2604, id="dflash"),
        pytest.param(NGRAM, 2604, id="ngram"),
        pytest.param({}, 1400, id="plain, page tables"),
        pytest.param(DFLASH, 1500, id="dflash, page tables"),
    ],
)
def test_engine_gives_the_tokens_of_the_cpu_also_after_a_prefix_hit(fake, options, version):
    """Drafts: of five rows and more, and of fewer, which go through other kernels."""
    fake.set(version=version)
    with fake.put_aside():
        wanted = cpu_answers()
    got = ask_twice("metal", **options)
    assert compare(got[0], wanted[0]).is_right
    assert got[1].cached_tokens == wanted[1].cached_tokens > 0
    if got[0].text == wanted[0].text:
        assert compare(got[1], wanted[1]).is_right
    assert bool(options) == (sum(got[2]) > 0)
