"""Whatever bytes a file holds, it is read or refused with ModelError, in little memory.

corpus/ keeps damaged files that reached each refusal, named by the first words of the messages.
"""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_gguf import write_small

from mtlqwen.config import ModelConfig
from mtlqwen.errors import ModelError
from mtlqwen.gguf import open_gguf
from mtlqwen.gguf_header import StringArray

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.gguf"))
MAX_MEMORY_BYTES = 4 << 20  # a file of 7 KB needs some 100 KB

INTERESTING = [0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def use(path):
    """Everything a run does with a file before it computes: True if the file is a whole model."""
    try:
        with open_gguf(path) as gguf:
            for value in gguf.metadata.values():
                if isinstance(value, StringArray):
                    list(value)
            for name, info in gguf.tensors.items():
                assert gguf.array(name).nbytes == info.num_bytes
            ModelConfig.from_gguf(gguf)
    except ModelError as error:
        assert path.name in str(error)
        return False
    return True


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("fuzz") / "model.gguf").read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "damaged.gguf"


place = st.integers(0, 1 << 13)
damage = st.one_of(
    st.tuples(st.just("cut"), place, st.just(b"")),
    st.tuples(st.just("put"), place, st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("put"), place, st.sampled_from(INTERESTING).map(struct.Struct("<Q").pack)),
    st.tuples(st.just("insert"), place, st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("delete"), place, st.binary(min_size=1, max_size=40)),
)


def damaged(raw, steps):
    for kind, at, data in steps:
        at %= len(raw) + 1
        if kind == "cut":
            raw = raw[:at]
        elif kind == "put":
            raw = raw[:at] + data + raw[at + len(data) :]
        elif kind == "insert":
            raw = raw[:at] + data + raw[at:]
        else:
            raw = raw[:at] + raw[at + len(data) :]
    return raw


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(damage, min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused(valid, scratch, steps):
    scratch.write_bytes(damaged(valid, steps))
    use(scratch)


def test_the_undamaged_file_is_a_whole_model(valid, scratch):
    scratch.write_bytes(valid)
    assert use(scratch)


def test_damage_costs_no_memory(valid, scratch):
    tracemalloc.start()
    try:
        for at in range(4, len(valid) - 8, 61):
            for number in INTERESTING[-4:]:
                scratch.write_bytes(damaged(valid, [("put", at, struct.pack("<Q", number))]))
                use(scratch)
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_kept_file_is_still_refused(path):
    assert not use(path)


def test_there_is_a_corpus():
    assert len(CORPUS) > 20
