"""PrefixStore: what a directory gives back is what was saved, or nothing."""

import logging
import os

import numpy as np
import pytest
from engine_harness import Harness, random_ids

from mtlqwen.prefix_store import HEADER, PrefixStore

TOKENS = np.arange(7, dtype=np.int32)
PARTS = [np.arange(50, dtype=np.uint8), np.arange(20, dtype=np.uint8)[::-1].copy()]
ENTRY_BYTES = HEADER.size + TOKENS.nbytes + 70


def empty_parts():
    return [np.zeros(50, np.uint8), np.zeros(20, np.uint8)]


def store(directory, **options):
    return PrefixStore(directory, b"model", **options)


def test_what_was_saved_is_found_and_read_back(tmp_path):
    path = store(tmp_path).save(b"key", TOKENS, PARTS)
    again = store(tmp_path)
    ((found, tokens),) = again.index()
    assert found == path and tokens.tolist() == TOKENS.tolist()
    parts = empty_parts()
    assert again.load(path, parts)
    assert all((a == b).all() for a, b in zip(parts, PARTS, strict=True))


def test_any_single_damaged_byte_is_noticed(tmp_path, caplog):
    path = store(tmp_path).save(b"key", TOKENS, PARTS)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        caplog.clear()
        indexed = [p for p, _ in store(tmp_path).index()]
        assert not (indexed and store(tmp_path).load(path, empty_parts())), place
        assert caplog.records


@pytest.mark.parametrize("size", [0, 10, HEADER.size, HEADER.size + 5, ENTRY_BYTES - 1])
def test_a_file_that_is_cut_off_is_ignored_with_a_warning(tmp_path, caplog, size):
    path = store(tmp_path).save(b"key", TOKENS, PARTS)
    path.write_bytes(path.read_bytes()[:size])
    indexed = list(store(tmp_path).index())
    assert not indexed or not store(tmp_path).load(path, empty_parts())
    assert "is ignored" in caplog.text


def test_entries_of_another_model_are_not_seen(tmp_path, caplog):
    PrefixStore(tmp_path, b"other").save(b"key", TOKENS, PARTS)
    assert list(store(tmp_path).index()) == []
    assert not caplog.records


def test_a_file_under_a_wrong_name_is_ignored_with_a_warning(tmp_path, caplog):
    theirs = PrefixStore(tmp_path, b"other").save(b"key", TOKENS, PARTS)
    ours = store(tmp_path).save(b"key", TOKENS, PARTS)
    ours.write_bytes(theirs.read_bytes())
    assert list(store(tmp_path).index()) == []
    assert "another model" in caplog.text


def test_the_directory_stays_within_its_bound_and_the_least_recently_used_go(tmp_path):
    bounded = store(tmp_path, max_bytes=3 * ENTRY_BYTES)
    paths = []
    for key in range(5):
        paths.append(bounded.save(bytes([key]), TOKENS, PARTS))
        if key == 3:
            assert bounded.load(paths[1], empty_parts())
    assert [path.exists() for path in paths] == [False, True, False, True, True]


def test_what_is_no_file_does_not_keep_entries_from_being_written(tmp_path, caplog):
    full = store(tmp_path, max_bytes=ENTRY_BYTES)
    first = full.save(b"first", TOKENS, PARTS)
    (tmp_path / first.name.replace("-", "-0")).mkdir()
    os.utime(first, (2e9, 2e9))  # the directory is older
    second = full.save(b"second", TOKENS, PARTS)
    assert [path for path, _ in full.index()] == [second]
    assert not caplog.records


def test_an_entry_larger_than_the_bound_is_not_written(tmp_path, caplog):
    assert store(tmp_path, max_bytes=ENTRY_BYTES - 1).save(b"key", TOKENS, PARTS) is None
    assert list(tmp_path.iterdir()) == [] and "exceeds" in caplog.text


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path, caplog, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mtlqwen.prefix_store.os.replace", refuse)
    assert store(tmp_path).save(b"key", TOKENS, PARTS) is None
    assert list(tmp_path.iterdir()) == [] and "No space left" in caplog.text


def test_what_a_dead_writer_left_is_removed_after_a_while(tmp_path):
    old, new = tmp_path / "a.partial", tmp_path / "b.partial"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    store(tmp_path).save(b"key", TOKENS, PARTS)
    assert not old.exists() and new.exists()


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    store(tmp_path, max_bytes=ENTRY_BYTES).save(b"key", TOKENS, PARTS)
    assert (tmp_path / "notes.txt").read_text() == "mine"


# ---- through the engine ------------------------------------------------------------------------


def test_a_prefix_survives_a_restart_of_the_engine(tmp_path):
    ids = random_ids(1, 150)
    first = Harness(prefix_cache_dir=tmp_path)
    first.run(ids, checkpoints=[75])
    first.close()
    second = Harness(prefix_cache_dir=tmp_path)
    assert second.run([*ids[:100], 3]).cached_tokens == 75
    assert second.run([*ids, 3]).cached_tokens == 100
    second.close()


def test_a_damaged_entry_costs_a_recomputation_and_a_warning(tmp_path, caplog):
    ids = random_ids(1, 100)
    first = Harness(prefix_cache_dir=tmp_path)
    first.run(ids, checkpoints=[50])
    first.close()
    for path in tmp_path.iterdir():
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    second = Harness(prefix_cache_dir=tmp_path)
    assert second.run([*ids[:60], 3]).cached_tokens == 0
    assert "checksum" in caplog.text
    second.run([*ids[:60], 4])
    second.close()


def test_behind_a_damaged_entry_the_next_longest_is_used(tmp_path):
    ids = random_ids(1, 100)
    first = Harness(prefix_cache_dir=tmp_path)
    first.run(ids, checkpoints=[25, 50, 75])
    first.close()
    for path, tokens in first.engine.memory.store.index():
        if len(tokens) > 25:
            path.write_bytes(path.read_bytes()[:-1])
    second = Harness(prefix_cache_dir=tmp_path)
    assert second.run([*ids[:80], 3]).cached_tokens == 25
    second.close()


def test_an_entry_of_another_layout_is_not_used(tmp_path):
    ids = random_ids(1, 100)
    first = Harness(prefix_cache_dir=tmp_path)
    first.run(ids, checkpoints=[50])
    first.close()
    second = Harness({"num_tiles": 4}, prefix_cache_dir=tmp_path)
    assert second.run(ids).cached_tokens == 0
    second.close()


def test_entries_that_would_hold_the_engine_up_are_not_written(tmp_path):
    harness = Harness(prefix_cache_dir=tmp_path)
    memory = harness.engine.memory
    memory.store.max_bytes = 8 * 3 * harness.runner.bundle_bytes
    harness.run(random_ids(1, 60), 1, checkpoints=[20, 40])
    harness.close()
    assert sorted(len(tokens) for _, tokens in memory.store.index()) == [20, 40]


def test_evicted_entries_come_back_from_the_directory(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    harness = Harness(snapshots=2, prefix_cache_dir=tmp_path)
    prompts = [random_ids(seed, 60) for seed in range(3)]
    for ids in prompts:
        harness.run(ids, checkpoints=[40], max_tokens=1)
        while harness.engine.memory.save_one():
            pass
    for ids in prompts:
        assert harness.run([*ids[:45], 3], max_tokens=1).cached_tokens == 40
    harness.close()
    assert not caplog.records
