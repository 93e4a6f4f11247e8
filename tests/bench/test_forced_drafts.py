"""Forced acceptance: what the tables of bench/speculation.py rest on."""

from contextlib import ExitStack, closing

import numpy as np
import pytest
from forced_drafts import ForcedBench, ForcedDrafts, expected_tokens
from random_model import shape_of, write_random_drafter

from mtlqwen.drafter import DrafterConfig
from mtlqwen.gguf import open_gguf
from mtlqwen.load import demo_drafter_path, demo_model_path

WIDTH, NUM_TOKENS = 3, 41


@pytest.fixture(scope="module")
def bench():
    with ExitStack() as stack:
        yield ForcedBench(stack, demo_model_path(), demo_drafter_path(), 1, NUM_TOKENS, 1)


@pytest.mark.parametrize("name", ["DFlash", "free"])
@pytest.mark.parametrize(("acceptance", "per_pass"), [(0.0, 1), (1.0, 1 + WIDTH)])
def test_drafts_are_right_as_often_as_forced_and_tokens_stay_the_plain_ones(
    bench, name, acceptance, per_pass
):
    plain = bench.generate(bench.plain, 2, 2)
    with closing(bench.engine(name, 2, acceptance, WIDTH)) as engine:
        forced = bench.generate(engine, 2, 2)
        drafted = sum(engine.stats.drafted)
    assert forced.answers == plain.answers
    assert plain.num_rows / forced.num_rows == pytest.approx(per_pass, abs=0.1)
    assert drafted > 0


def test_the_drafter_runs_in_a_forced_pass_but_its_guesses_are_not_read(bench):
    runner = bench.runners["DFlash"]
    ids = []
    run = runner.run

    def watched(map_ops=None):
        before = runner.batch.input_ids[: runner.batch.header[0]].copy()
        num_drafts = runner.drafting.drafts.header[2]
        run(map_ops)
        if num_drafts:
            after = runner.batch.input_ids[: runner.batch.header[0]]
            guesses = runner.batch.input_ids[runner.drafting.drafts.target_rows[:num_drafts]]
            ids.append((before, after.copy(), guesses.copy()))

    runner.run = watched
    try:
        with closing(bench.engine("DFlash", 1, 0.7, WIDTH)) as engine:
            bench.generate(engine, 1, 1)
    finally:
        del runner.run
    assert len(ids) > NUM_TOKENS // (1 + WIDTH)
    assert all((before == after).all() for before, after, _ in ids)
    assert len({tuple(guesses) for _, _, guesses in ids}) > 1, "the drafter guesses nothing"


def test_forced_drafts_hit_the_acceptance_over_many(bench):
    answer = np.arange(5000).tolist()
    drafts = ForcedDrafts([[0]], [answer], 0.7, 0)

    class AtStart:
        number, num_tokens = 0, 1

    proposed = drafts.propose(AtStart, 5000)
    assert np.mean(proposed == np.array(answer)) == pytest.approx(0.7, abs=0.02)


def test_expected_tokens_of_a_pass():
    assert expected_tokens(0, 0.7) == 1
    assert expected_tokens(2, 0.5) == 1.75
    assert expected_tokens(15, 1.0) == 16


def test_a_random_drafter_belongs_to_the_random_model_of_its_size(tmp_path):
    write_random_drafter("tiny", tmp_path / "drafter.gguf", "Q4_K_M")
    with open_gguf(tmp_path / "drafter.gguf") as gguf:
        config = DrafterConfig.from_gguf(gguf)
    config.check_target(shape_of("tiny"))
    assert config.causal == (True, False)
