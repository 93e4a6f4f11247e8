"""The demo model with its drafter on the CPU device: plain decoding's tokens in fewer passes."""

import json
from pathlib import Path

import pytest

from mtlqwen.load import close_engine, demo_model_path, open_engine
from mtlqwen.sampling import SamplingParams

pytestmark = pytest.mark.slow  # minutes under sanitizers; seconds in a release build

DATA = Path(__file__).parents[1] / "data"
PROMPTS = [
    prompt
    for prompt in json.loads((DATA / "reference.json").read_text())["prompts"]
    if len(prompt["prompt"]) < 500
]


def answers(engine, prompts, **params):
    """All tokens of each prompt, run together, with the tokens of each pass."""
    outputs = [[] for _ in prompts]
    for prompt, out in zip(prompts, outputs, strict=True):
        wanted = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **params})
        engine.submit(prompt["prompt"], wanted, on_output=out.append)
    while engine.step():
        pass
    return [[output.tokens for output in out if output.tokens] for out in outputs]


def flat(passes):
    return [[token for tokens in each for token in tokens] for each in passes]


def opened(**options):
    return open_engine(demo_model_path(), ctx=1024, threads=2, **{"prefix_memory": 0, **options})


@pytest.fixture(scope="module")
def plain():
    engine = opened()
    yield flat(answers(engine, PROMPTS))
    close_engine(engine)


@pytest.mark.parametrize("width", [1, 6, 15, None])
@pytest.mark.parametrize("options", [{"drafter": "demo"}, {"draft": "ngram"}])
def test_greedy_tokens_are_those_of_plain_decoding(plain, options, width):
    engine = opened(**options, draft_width=width)
    assert flat(answers(engine, PROMPTS)) == plain
    assert sum(engine.stats.drafted) > 0
    close_engine(engine)


@pytest.mark.parametrize("params", [{"temperature": 0.8, "top_p": 0.9}, {"presence_penalty": 1.0}])
def test_sampled_tokens_are_those_of_plain_decoding(params):
    few, results = PROMPTS[:6], []
    for options in ({}, {"drafter": "demo", "draft_width": 7}):
        engine = opened(**options)
        results.append(flat(answers(engine, few, seed=11, **params)))
        close_engine(engine)
    assert results[0] == results[1]


def test_a_restored_prefix_drafts_like_a_cold_one():
    prompt = {"prompt": next(p["prompt"] for p in PROMPTS if p["name"] == "code")}
    engine = opened(drafter="demo", draft_width=15, prefix_memory=64 << 20)
    ((*cold,),) = answers(engine, [prompt])
    longer = {"prompt": [*prompt["prompt"], *flat([cold])[0]]}
    (warm,) = answers(engine, [longer])
    assert engine.stats.cached_tokens == len(longer["prompt"]) - 1
    close_engine(engine)
    engine = opened(drafter="demo", draft_width=15)
    (cold,) = answers(engine, [longer])
    assert flat([cold]) == flat([warm])
    assert len(warm) <= len(cold)  # a restored prompt drafts in its first pass already
    close_engine(engine)
