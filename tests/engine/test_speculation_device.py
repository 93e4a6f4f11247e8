"""The demo model with its drafter on the CPU device: plain decoding's tokens in fewer passes."""

import json
from pathlib import Path

import numpy as np
import pytest

from mtlqwen.load import close_engine, demo_model_path, open_engine
from mtlqwen.sampling import SamplingParams
from mtlqwen.speculation import BlockDrafts, Speculation

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


def test_drafts_of_common_tokens_alone_change_no_token(plain, monkeypatch):
    monkeypatch.setattr("mtlqwen.drafter_runner.NUM_COMMON_TOKENS", 1000)
    engine = opened(drafter="demo", draft_width=6)
    runner, run, drafted = engine.runner, engine.runner.run, {False: [], True: []}
    header, rows = runner.drafting.drafts.header, runner.drafting.drafts.target_rows
    runner.drafting._max_rare = 20  # of these texts some have more, some less

    def watched(map_ops=None):
        run(map_ops)
        is_common = bool(header[3] <= runner.drafting._max_rare)
        drafted[is_common] += runner.batch.input_ids[rows[: header[2]]].tolist()

    runner.run = watched
    assert flat(answers(engine, PROMPTS)) == plain
    assert max(drafted[True]) < 1000 <= max(drafted[False])
    assert sum(engine.stats.accepted) > 0
    close_engine(engine)


def first_drafts(width):
    """What is drafted for each prompt behind its first token."""
    engine, drafts = opened(drafter="demo", draft_width=width), []
    runner, run = engine.runner, engine.runner.run
    header, rows = runner.drafting.drafts.header, runner.drafting.drafts.target_rows

    def watched(map_ops=None):
        run(map_ops)
        drafts.append(runner.batch.input_ids[rows[: header[2]]].tolist())

    runner.run = watched
    found = []
    for prompt in PROMPTS:
        drafts.clear()
        answers(engine, [prompt], max_tokens=18)
        found.append(next(each for each in drafts if each))
    close_engine(engine)
    return found


@pytest.mark.parametrize("width", [1, 3, 8])
def test_few_drafts_are_the_first_of_a_whole_block(width):
    """A drafter guesses badly in blocks that it was not trained on: the rest is masks as ever."""
    whole = first_drafts(15)
    assert first_drafts(width) == [drafts[:width] for drafts in whole]


CODE = next(p["prompt"] for p in PROMPTS if p["name"] == "code")


class SomeDrafts(BlockDrafts):
    """No drafts for every third request."""

    def propose(self, sequence, count):
        drafts = super().propose(sequence, count)
        return drafts[:0] if sequence.number % 3 == 1 else drafts


@pytest.mark.parametrize("max_slots", [1, 4, 8])
def test_any_width_and_batch_gives_the_tokens_of_plain_decoding(max_slots):
    """Every third request does not draft."""
    few = [prompt for prompt in PROMPTS if len(prompt["prompt"]) < 40][: max(3, max_slots)]
    engine = opened(max_slots=max_slots)
    plain = flat(answers(engine, few, max_tokens=18))
    close_engine(engine)
    engine = opened(drafter="demo", draft_width=15, max_slots=max_slots)
    drafter = engine.runner.drafter
    for width in range(1, 16):
        drafts = SomeDrafts(drafter.mask_id, drafter.block_size)
        engine.speculation = Speculation(drafts, engine.runner.pass_tokens, 1024, width)
        assert flat(answers(engine, few, max_tokens=18)) == plain, width
    assert sum(engine.stats.accepted) > 0
    close_engine(engine)


def entry_bytes(engine, num_tokens):
    """GDN state and all tiles of the entry of so many tokens."""
    (entry,) = (e for e in engine.memory.prefix.entries if e.num_tokens == num_tokens)
    tiles = [
        t for b in entry.bundles for t in engine.runner.bundle_view(*engine.memory.pool.place(b))
    ]
    return [np.array(part) for part in (entry.state, *tiles)]


def test_an_entry_holds_the_same_bytes_whatever_width_was_drafted():
    results = []
    for width in (0, 4, 15, None):
        engine = opened(drafter="demo", draft_width=width, prefix_memory=64 << 20)
        answers(engine, [{"prompt": CODE}], max_tokens=129 - len(CODE))
        results.append(entry_bytes(engine, 128))  # a whole bundle
        close_engine(engine)
    for other in results[1:]:
        for part, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(part, expected)


TAIL = [40, 50, 60]  # more than one token to compute: a cold prompt and a restored one start alike


def cold_passes(prompt, **params):
    """Tokens of each pass of a lone request."""
    engine = opened(drafter="demo", draft_width=15)
    (passes,) = answers(engine, [{"prompt": prompt}], **params)
    close_engine(engine)
    return passes


def test_a_restored_prefix_drafts_like_a_cold_one(tmp_path):
    options = {"drafter": "demo", "draft_width": 15, "prefix_memory": 64 << 20}
    engine = opened(**options, prefix_cache_dir=tmp_path)
    ((*first,),) = answers(engine, [{"prompt": CODE}])
    longer = [*CODE, *flat([first])[0], *TAIL]
    (warm,) = answers(engine, [{"prompt": longer}])
    assert engine.stats.cached_tokens == len(longer) - len(TAIL) - 1
    close_engine(engine)
    engine = opened(**options, prefix_cache_dir=tmp_path)
    (loaded,) = answers(engine, [{"prompt": [*longer, *TAIL]}])
    assert engine.stats.cached_tokens >= len(longer) - len(TAIL) - 1
    close_engine(engine)
    assert warm == cold_passes(longer)
    assert loaded == cold_passes([*longer, *TAIL])
    assert len(warm) < 40  # passes for 40 tokens


def test_a_preempted_sequence_drafts_like_a_cold_one():
    engine = opened(drafter="demo", draft_width=15)
    outputs = []
    wanted = SamplingParams(max_tokens=60, ignore_eos=True)
    engine.submit(CODE, wanted, on_output=outputs.append)
    while sum(len(output.tokens) for output in outputs) < 20:
        engine.step()
    before = [token for output in outputs for token in output.tokens]
    outputs.clear()
    engine._preempt(engine.live[0])
    while engine.step():
        pass
    close_engine(engine)
    again = [output.tokens for output in outputs if output.tokens]
    assert again == cold_passes([*CODE, *before], max_tokens=60 - len(before))
