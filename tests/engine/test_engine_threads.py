"""The engine's thread, and any number of others that submit and cancel."""

import random
import threading
import time

import pytest
from engine_harness import Harness, random_ids
from fake_runner import FakeRunner

from mtlqwen.engine import Engine
from mtlqwen.errors import DeviceError, MtlqError
from mtlqwen.sampling import SamplingParams

PATIENCE_S = 60


class Waiter:
    """A request whose end another thread waits for."""

    def __init__(self, engine, ids, **params):
        self.tokens, self.last, self.ended = [], None, threading.Event()
        self.request = engine.submit(ids, SamplingParams(**params), on_output=self._receive)

    def _receive(self, output):
        assert not self.ended.is_set(), "something came after the end"
        self.tokens += output.tokens
        if output.finish_reason is not None:
            self.last = output
            self.ended.set()

    def wait(self):
        assert self.ended.wait(PATIENCE_S), "no end"
        return self.last.finish_reason


def test_the_thread_serves_and_sleeps_and_wakes():
    runner = FakeRunner()
    with Engine(runner, prefix_memory_bytes=0) as engine:
        for seed in range(3):
            waiter = Waiter(engine, random_ids(seed, 20), max_tokens=5)
            assert waiter.wait() == "length"
            assert waiter.tokens == runner.oracle().generate(random_ids(seed, 20), 5)
    assert runner.num_heaps == 0


def test_an_idle_thread_uses_no_processor_time():
    with Engine(FakeRunner()) as engine:
        assert Waiter(engine, [1, 2, 3], max_tokens=2).wait() == "length"
        steps = engine.stats.steps
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1
        assert engine.stats.steps == steps


def test_hammering_threads_get_the_tokens_of_a_lone_run():
    harness = Harness({"max_slots": 4, "num_tiles": 2}, bundles=24, snapshots=5)
    engine, failures = harness.engine, []
    engine.start()

    def hammer(number):
        rng = random.Random(number)
        try:
            for turn in range(12):
                ids = random_ids(turn % 3, 50)[: rng.randrange(50)] + random_ids(number, 9)
                count = rng.randrange(1, 25)
                waiter = Waiter(engine, ids, max_tokens=count)
                if rng.random() < 0.4:
                    time.sleep(rng.random() * 0.01)
                    engine.cancel(waiter.request)
                    engine.cancel(waiter.request)
                reason = waiter.wait()
                expected = harness.oracle.generate(ids, count)
                assert waiter.tokens == expected[: len(waiter.tokens)]
                assert reason == "cancelled" or len(waiter.tokens) == count
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    stats = engine.stats
    assert stats.submitted == sum(stats.finished.values()) == 8 * 12
    harness.close()


def test_pending_requests_hear_of_a_failing_device_and_later_ones_are_refused(caplog):
    runner = FakeRunner(max_slots=1)
    engine = Engine(runner, prefix_memory_bytes=0)
    waiters = [Waiter(engine, random_ids(s, 20), max_tokens=100) for s in range(3)]
    runner.fail_next = DeviceError("lost", status=6)
    engine.start()
    assert [w.wait() for w in waiters] == ["error"] * 3
    assert not engine.alive
    with pytest.raises(MtlqError, match="has ended: lost"):
        Waiter(engine, [1], max_tokens=1)
    engine.close()
    assert "the engine has failed" in caplog.text


def test_closing_while_threads_submit_answers_or_refuses_every_request():
    engine = Engine(FakeRunner(), prefix_memory_bytes=0)
    engine.start()
    waiters, refused = [], []

    def submit(number):
        for turn in range(200):
            try:
                waiters.append(Waiter(engine, random_ids(turn, 5), max_tokens=30))
            except MtlqError:
                refused.append(number)
                return

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    engine.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {w.wait() for w in waiters} <= {"length", "cancelled"}


def test_an_engine_closes_whatever_its_thread_is_about_to_do():
    runner = FakeRunner()
    for turn in range(200):
        engine = Engine(runner, prefix_memory_bytes=0)
        engine.start()
        if turn % 2:
            Waiter(engine, [1, 2], max_tokens=1).wait()
        engine.close()
        assert not engine._thread.is_alive()


def test_a_listener_may_submit_and_cancel():
    engine = Engine(FakeRunner(), prefix_memory_bytes=0)
    seen, done = [], threading.Event()

    def second(output):
        seen.append(output)
        if output.finish_reason is not None:
            done.set()

    def first(output):
        if output.finish_reason is None:
            return
        request = engine.submit([3, 4], SamplingParams(), on_output=second)
        engine.cancel(request)

    with engine:
        engine.submit([1, 2], SamplingParams(max_tokens=2), on_output=first)
        assert done.wait(PATIENCE_S)
    assert seen[-1].finish_reason == "cancelled"
