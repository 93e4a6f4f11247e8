"""Engine: requests, their ends, and neighbours that do not matter."""

import random

import numpy as np
import pytest
from engine_harness import Harness, random_ids

from mtlqwen.errors import DeviceError, MtlqError, RequestError
from mtlqwen.sampling import SamplingParams


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 200, 255])
def test_a_lone_prompt_of_any_length_gives_the_models_tokens(length):
    harness = Harness()
    harness.run(random_ids(length, length), max_tokens=20)
    harness.close()


@pytest.mark.parametrize("pass_tokens", [4, 5, 16, 31, 100, 300])
def test_tokens_do_not_depend_on_how_the_prompt_is_cut(pass_tokens):
    harness = Harness({"pass_tokens": pass_tokens})
    harness.run(random_ids(1, 150))


def test_requests_beyond_the_slots_wait_and_none_fails():
    """Case A1: answers never leak between concurrent requests, in any order of arrival."""
    lengths = [1, 2, 3, 17, 31, 64, 127, 128, 129, 200, 220, 15, 16, 33, 48, 100]
    harness = Harness({"max_slots": 8})
    for shuffle in range(3):
        order = random.Random(shuffle).sample(range(16), 16)
        clients = [harness.submit(random_ids(i, lengths[i]), 24) for i in order]
        harness.step()
        assert harness.engine.stats.running == 8 and harness.engine.stats.waiting == 8
        harness.drain()
        for client in clients:
            harness.check_tokens(client)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8])
def test_survivors_are_unaffected_when_neighbours_end_or_arrive(batch):
    """Case A2."""
    counts = [1, 2, 5, 20, 100, 7, 33, 64]
    harness = Harness({"max_slots": 8})
    clients = [harness.submit(random_ids(i, 5 + i), counts[i]) for i in range(batch)]
    harness.step(3)
    clients.append(harness.submit(random_ids(99, 40), 30))
    harness.drain()
    for client in clients:
        harness.check_tokens(client)
        assert client.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_not_delivered():
    harness = Harness()
    ids = random_ids(1, 20)
    tokens = harness.oracle.generate(ids, 12)
    client = harness.run(ids, 12, stop_ids=(tokens[5],))
    first = tokens.index(tokens[5])
    assert (client.tokens, client.finish_reason) == (tokens[:first], "stop")
    assert client.outputs[-1].tokens == []


def test_ignore_eos_ignores_the_models_stop_tokens_but_not_the_requests():
    harness = Harness()
    ids = random_ids(1, 20)
    tokens = harness.oracle.generate(ids, 12)
    assert harness.run(ids, 12, stop_ids=tokens[:9], ignore_eos=True).tokens == tokens
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_ids=(tokens[4],))
    outputs = []
    harness.engine.submit(ids, params, stop_ids=tokens, on_output=outputs.append)
    harness.drain()
    assert [t for o in outputs for t in o.tokens] == tokens[: tokens.index(tokens[4])]
    assert outputs[-1].finish_reason == "stop"


def test_a_prompt_that_leaves_one_position_gives_one_token():
    """Case A8."""
    harness = Harness({"max_context": 64})
    client = harness.run(random_ids(1, 63), 50)
    assert (len(client.tokens), client.finish_reason) == (1, "length")


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(length):
    harness = Harness({"max_context": 64})
    with pytest.raises(RequestError, match=rf"{length} tokens.* context of 64 .*at most 63") as e:
        harness.submit(random_ids(1, length))
    assert e.value.code == "context_length_exceeded"
    harness.run([1, 2, 3])


def test_a_prompt_beyond_the_kv_memory_is_refused_with_the_numbers():
    harness = Harness({"max_context": 256}, bundles=3)
    with pytest.raises(RequestError, match=r"3 blocks of 16 tokens.*at most 47 fit"):
        harness.submit(random_ids(1, 48))
    client = harness.run(random_ids(1, 40), None)
    assert len(client.tokens) == 8 and client.finish_reason == "length"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no tokens"),
        ([1, 50], "token 50 is not within 0 to 49"),
        ([-1], "token -1"),
        ([1.5], "must be a list of token ids"),
        ([[1], [2]], "must be a list of token ids"),
    ],
)
def test_ids_that_are_no_prompt_are_refused(ids, message):
    with pytest.raises(RequestError, match=message):
        Harness().engine.submit(ids, SamplingParams(), on_output=print)


@pytest.mark.parametrize("checkpoints", [[0], [11], [-1]])
def test_checkpoints_outside_the_prompt_are_refused(checkpoints):
    with pytest.raises(RequestError, match="checkpoints"):
        Harness().submit(random_ids(1, 10), checkpoints=checkpoints)


# ---- cancelling --------------------------------------------------------------------------------


def test_a_cancelled_request_gives_its_slot_back_before_the_next_pass():
    """Case A7."""
    harness = Harness({"max_slots": 1}, snapshots=0)
    first = harness.submit(random_ids(1, 20), 100, ignore_eos=True)
    second = harness.submit(random_ids(2, 20), 3)
    harness.step(5)
    harness.engine.cancel(first.request)
    harness.step()
    assert first.finish_reason == "cancelled"
    assert second.request.sequence.active
    harness.drain()
    harness.check_tokens(first)
    harness.check_tokens(second)
    assert harness.engine.stats.bundles_bound == 0


def test_cancelling_works_in_the_queue_in_the_prompt_twice_and_after_the_end():
    harness = Harness({"max_slots": 1, "pass_tokens": 8})
    running, waiting = harness.submit(random_ids(1, 90)), harness.submit(random_ids(2, 9))
    harness.step(2)
    assert running.request.sequence.stage == "p.p"
    for client in (waiting, running, running):
        harness.engine.cancel(client.request)
    harness.drain()
    harness.engine.cancel(running.request)
    harness.drain()
    assert [c.finish_reason for c in (running, waiting)] == ["cancelled"] * 2
    assert [len(c.outputs) for c in (running, waiting)] == [1, 1]
    assert harness.engine.stats.finished["cancelled"] == 2


def test_a_request_cancelled_before_the_engine_saw_it_is_answered():
    harness = Harness()
    client = harness.submit(random_ids(1, 5))
    harness.engine.cancel(client.request)
    harness.drain()
    assert client.finish_reason == "cancelled" and client.cached_tokens == 0


def test_nothing_is_published_by_a_cancelled_request_but_its_checkpoints():
    harness = Harness({"pass_tokens": 8})
    client = harness.submit(random_ids(1, 60), checkpoints=[20])
    harness.step(5)
    harness.engine.cancel(client.request)
    harness.drain()
    assert [e.num_tokens for e in harness.engine.memory.prefix.entries] == [20]


# ---- sampling ----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch():
    harness = Harness()
    options = {"max_tokens": 25, "temperature": 1.0, "seed": 11111}

    def sampled(ids, **extra):
        client = harness.submit(ids, **{**options, **extra})
        return client

    alone = sampled(random_ids(1, 20))
    harness.drain()
    again = sampled(random_ids(1, 20))
    others = [harness.submit(random_ids(s, 30), 9, temperature=0.7) for s in range(2)]
    harness.drain()
    different = sampled(random_ids(1, 20), seed=22222)
    harness.drain()
    assert alone.tokens == again.tokens != different.tokens
    assert all(len(c.tokens) == 9 for c in others)


def test_mixed_settings_do_not_change_a_greedy_neighbour():
    """Case A6."""
    harness = Harness()
    plain = harness.submit(random_ids(1, 90), 30)
    harness.step()
    penal = harness.submit(
        random_ids(3, 50), 20, repetition_penalty=1.2, presence_penalty=1.0, logit_bias={"10": 5}
    )
    other = harness.submit(random_ids(4, 10), 10)
    harness.drain()
    harness.check_tokens(plain)
    harness.check_tokens(other)
    assert len(penal.tokens) == 20


def test_a_greedy_request_with_logprobs_gives_the_same_tokens_and_their_logprobs():
    harness = Harness()
    client = harness.run(random_ids(1, 20), 5, logprobs=3)
    for k, output in enumerate(client.outputs):
        ((chosen, top),) = output.logprobs
        row = harness.oracle.logits(client.ids + client.tokens[:k]).astype(np.float64)
        expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert chosen == pytest.approx(expected[output.tokens[0]], abs=1e-5)
        assert top[0] == (output.tokens[0], chosen) and len(top) == 3


class BrokenSampler:
    def sample(self, logits):
        raise ValueError("broken")


def test_a_failing_sampler_fails_its_request_alone():
    harness = Harness()
    broken = harness.submit(random_ids(1, 20), 10, temperature=1.0)
    broken.request.sampler = BrokenSampler()
    other = harness.submit(random_ids(2, 20), 10)
    harness.drain()
    assert broken.finish_reason == "error" and "broken" in str(broken.outputs[-1].error)
    harness.check_tokens(other)
    assert harness.engine.alive
    harness.close()


# ---- failures ----------------------------------------------------------------------------------


def test_a_listener_that_raises_loses_its_request_alone(caplog):
    harness = Harness()
    other = harness.submit(random_ids(2, 20), 10)
    calls = []

    def raising(output):
        calls.append(output)
        raise RuntimeError("gone")

    harness.engine.submit(random_ids(1, 20), SamplingParams(max_tokens=50), on_output=raising)
    harness.drain()
    harness.check_tokens(other)
    assert [o.finish_reason for o in calls] == [None, "cancelled"]
    assert "on_output failed" in caplog.text


def test_a_failing_device_ends_the_engine_and_every_request_hears_it():
    harness = Harness({"max_slots": 1})
    clients = [harness.submit(random_ids(s, 20), 10) for s in range(3)]
    harness.step(2)
    harness.runner.fail_next = DeviceError("the device is lost", status=6)
    late = harness.submit(random_ids(9, 5))
    with pytest.raises(DeviceError):
        harness.step()
    assert not harness.engine.alive
    for client in [*clients, late]:
        assert client.finish_reason == "error"
        assert "the device is lost" in str(client.outputs[-1].error)
    with pytest.raises(MtlqError, match=r"has ended: the device is lost"):
        harness.submit([1])
    harness.engine.close()
    harness.engine.close()


def test_closing_cancels_what_still_runs_and_gives_everything_back():
    harness = Harness({"max_slots": 1})
    clients = [harness.submit(random_ids(s, 20), 10) for s in range(2)]
    harness.step(3)
    queued = harness.submit(random_ids(3, 20))
    harness.close()
    assert [c.finish_reason for c in [*clients, queued]] == ["cancelled"] * 3
    with pytest.raises(MtlqError, match="it was closed"):
        harness.submit([1])
    harness.engine.close()


def test_an_idle_step_does_nothing():
    harness = Harness()
    assert not harness.step()
    harness.run([1, 2, 3])
    runs = harness.runner.num_runs
    assert not harness.step() and harness.runner.num_runs == runs


def test_the_time_of_a_step_is_split_completely():
    harness = Harness()
    harness.run(random_ids(1, 50), 10)
    stats = harness.engine.stats
    assert stats.steps == harness.runner.num_runs
    assert stats.computed_tokens == harness.runner.num_rows
    assert 0 < stats.device_ns <= stats.step_ns["run"]
    assert all(stats.step_ns.values())
