"""Host time of a step: run with pytest bench/test_engine_hot_path.py --benchmark-autosave."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mtlqwen._batch import Batch
from mtlqwen._bindings import BundlePool, SlotMap
from mtlqwen._prefix import PrefixCache
from mtlqwen._scheduler import Scheduler
from mtlqwen._sequence import Sequence
from mtlqwen.engine import Engine
from mtlqwen.sampling import SamplingParams

SLOTS, PASS_TOKENS, BLOCK_TOKENS, MAX_CONTEXT = 8, 128, 128, 65_536
NUM_TILES, NUM_BUNDLES = 12, 4096  # of a 0.8B


class InstantRunner:
    """A device that takes no time: every row chooses token 7."""

    max_slots, pass_tokens, block_tokens, max_context = (
        SLOTS,
        PASS_TOKENS,
        BLOCK_TOKENS,
        MAX_CONTEXT,
    )
    num_tiles, tile_pages, bundle_bytes, state_bytes = NUM_TILES, [1] * NUM_TILES, 1 << 20, 1 << 10
    model_id, device_ns, drafting = b"instant", 0, None
    cache_buffers = tuple(range(NUM_TILES))

    def __init__(self) -> None:
        self.config = SimpleNamespace(num_tokens=100)
        info = SimpleNamespace(max_mappings=0, memory_bytes=1 << 40)
        self.device = SimpleNamespace(info=info, map=lambda ops: None)
        lengths = {"header": 16, "query_start_loc": SLOTS + 1}
        rows = dict.fromkeys(("input_ids", "row_sequence", "positions", "logit_rows"), PASS_TOKENS)
        slots = dict.fromkeys(
            ("sequence_slots", "batched_kv_valid", "bank", "state", "pending"), SLOTS
        )
        self.batch = SimpleNamespace(
            **{
                name: np.zeros(length, np.uint32 if name == "header" else np.int32)
                for name, length in (lengths | rows | slots).items()
            }
        )
        self.argmax = np.full(PASS_TOKENS, 7, np.int32)
        self.logits = np.zeros((PASS_TOKENS, 100), np.float32)

    def run(self, map_ops: np.ndarray | None) -> None:
        pass

    def new_heap(self, num_bundles: int) -> int:
        return 1

    def free_heap(self, heap: int) -> None:
        pass


@pytest.fixture
def generating() -> list[Sequence]:
    live = []
    for number in range(SLOTS):
        sequence = Sequence(np.arange(100, dtype=np.int32), number)
        sequence.start(number)
        sequence.restore(99)
        live.append(sequence)
    return live


def test_step_of_eight_generating_sequences(benchmark) -> None:
    engine = Engine(InstantRunner(), prefix_memory_bytes=0)
    for _ in range(SLOTS):
        engine.submit([1] * 10, SamplingParams(max_tokens=60_000), on_output=lambda output: None)
    engine.step()
    assert benchmark(engine.step)


def test_schedule(benchmark, generating) -> None:
    assert benchmark(Scheduler(PASS_TOKENS, SLOTS).schedule, generating) == SLOTS


def test_pack(benchmark, generating) -> None:
    Scheduler(PASS_TOKENS, SLOTS).schedule(generating)
    assert benchmark(Batch(InstantRunner().batch).pack, generating) == SLOTS


def test_bind_and_map_a_context_of_512_bundles(benchmark) -> None:
    def bind() -> None:
        pool = BundlePool(NUM_BUNDLES, 256, lambda num_bundles: 1, lambda heap: None)
        slots = SlotMap(pool, range(NUM_TILES), SLOTS, 512, [1] * NUM_TILES, NUM_BUNDLES)
        bundle = -1
        for _ in range(512):
            bundle = pool.take(bundle)
            slots.map(0, bundle)
        assert len(slots.take_ops()) == 2 * NUM_TILES  # one run per chunk

    benchmark(bind)


def test_look_up_a_prompt_of_16k_tokens(benchmark) -> None:
    pool = BundlePool(NUM_BUNDLES, NUM_BUNDLES, lambda num_bundles: 1, lambda heap: None)
    prefix = PrefixCache(pool, b"model", state_bytes=64, max_bytes=1 << 20)
    tokens = np.arange(16_384, dtype=np.int32)
    bundles = [pool.take() for _ in range(128)]
    for end in range(512, 16_385, 512):
        prefix.publish(tokens[:end], bundles[: end // BLOCK_TOKENS], prefix.make_room())
    entry, shared = benchmark(prefix.lookup, np.append(tokens, np.int32(1)))
    assert entry is not None and entry.num_tokens == shared == 16_384
