"""Whatever happens, in any order: the tokens of a lone cold run, and memory that adds up."""

import hypothesis.strategies as st
from engine_harness import OracleDrafts, drafting_harness, often, random_ids
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

NUM_FAMILIES = 3  # prompts of a family share a beginning


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        bundles=st.integers(1, 24),
        heap_bundles=st.sampled_from([1, 3, 8, 64]),
        snapshots=st.integers(0, 6),
        pass_tokens=st.sampled_from([4, 16, 33]),
        pages_per_tile=st.sampled_from([1, 2]),
        policy=st.sampled_from([0.0, 0.5, 1.0]),
        chunk_tokens=st.sampled_from([16, 64]),
        width=st.sampled_from([0, 2, 15]),
    )
    def create(
        self,
        slots,
        bundles,
        heap_bundles,
        snapshots,
        pass_tokens,
        pages_per_tile,
        policy,
        chunk_tokens,
        width,
    ):
        self.harness = drafting_harness(
            OracleDrafts(often(3), lambda sequence: sequence.num_tokens % 30 > 10),
            width,
            runner={
                "max_slots": slots,
                "max_context": 256,
                "pass_tokens": pass_tokens,
                "pages_per_tile": pages_per_tile,
                "num_tiles": 2,
            },
            bundles=bundles,
            heap_bundles=heap_bundles,
            snapshots=snapshots,
            prefix_chunk_tokens=chunk_tokens,
            policy=policy,
        )

    @rule(
        family=st.integers(0, NUM_FAMILIES - 1),
        shared=st.integers(0, 200),
        own=st.integers(1, 60),
        seed=st.integers(0, 3),
        max_tokens=st.integers(1, 40),
        ends=st.booleans(),
        cuts=st.lists(st.floats(0.01, 1.0), max_size=2),
    )
    def submit(self, family, shared, own, seed, max_tokens, ends, cuts):
        ids = random_ids(family, 200)[:shared] + random_ids(100 + seed, own)
        ids = ids[: self.harness.engine.memory.max_context - 1]
        checkpoints = [max(1, int(cut * len(ids))) for cut in cuts]
        stop_ids = (7, 23) if ends else ()
        self.harness.submit(ids, max_tokens, stop_ids=stop_ids, checkpoints=checkpoints)

    @precondition(lambda self: self.harness.clients)
    @rule(data=st.data())
    def continue_chat(self, data):
        """The next turn: an earlier prompt, its answer so far, something new."""
        earlier = data.draw(st.sampled_from(self.harness.clients))
        ids = earlier.ids + earlier.tokens + random_ids(data.draw(st.integers(0, 3)), 9)
        if len(ids) < self.harness.engine.memory.max_context:
            self.harness.submit(ids, 6)

    @precondition(lambda self: self.harness.clients)
    @rule(data=st.data())
    def submit_again(self, data):
        """The same prompt, whose end is a restart point for longer ones alone."""
        ids = data.draw(st.sampled_from(self.harness.clients)).ids
        self.harness.submit(ids, 4, checkpoints=[len(ids)])

    @precondition(lambda self: self.harness.clients)
    @rule(data=st.data())
    def cancel(self, data):
        client = data.draw(st.sampled_from(self.harness.clients))
        self.harness.engine.cancel(client.request)

    @rule(count=st.integers(1, 12))
    def step(self, count):
        self.harness.step(count)
        for client in self.harness.clients:
            if client.outputs:
                self.harness.check_tokens(client)

    def teardown(self):
        if not hasattr(self, "harness"):
            return
        self.harness.drain()
        for client in self.harness.clients:
            assert client.finish_reason in ("stop", "length", "cancelled")
            self.harness.check_tokens(client)
        stats = self.harness.engine.stats
        assert stats.running == stats.waiting == stats.bundles_bound == stats.mappings == 0
        assert sum(stats.finished.values()) == stats.submitted == len(self.harness.clients)
        self.harness.close()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
