import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType

TENSORS = {"x": (TensorType.F32, (2, 4)), "y": (TensorType.F32, (3,))}
X = np.zeros((2, 16), np.uint8)
Y = np.zeros((1, 12), np.uint8)


def test_an_exception_leaves_no_file_and_the_old_one_as_it_was(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), GGUFWriter(path, {}, TENSORS) as writer:
        writer.write("x", X)
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "model.gguf"
    with GGUFWriter(path, {}, TENSORS) as writer:
        writer.write("x", X[:1])
        writer.write("x", X[1:])
        assert not path.exists()
        writer.write("y", Y)
    assert path.stat().st_size == writer.num_bytes
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "rows",
    [[("y", Y)], [("x", np.zeros((3, 16), np.uint8))], [("x", X)], [("x", X), ("y", Y), ("z", Y)]],
    ids=["out of order", "too many rows", "a tensor left out", "an unknown tensor"],
)
def test_tensors_other_than_announced_are_refused(tmp_path, rows):
    with (
        pytest.raises(ValueError, match="tensor"),
        GGUFWriter(tmp_path / "m", {}, TENSORS) as writer,
    ):
        for name, data in rows:
            writer.write(name, data)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_missing_is_named(tmp_path):
    writer = GGUFWriter(tmp_path / "nowhere" / "model.gguf", {}, TENSORS)
    with pytest.raises(ModelError, match=r"cannot write.*nowhere"), writer:
        pass


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_replaced(tmp_path, make):
    path = tmp_path / "special"
    make(path)
    before = path.stat()
    with pytest.raises(ModelError, match="no regular file"), GGUFWriter(path, {}, {}):
        pass
    assert path.stat().st_ino == before.st_ino
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, sys
import numpy as np
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
rows = np.zeros((1 << 10, 1 << 10), np.uint8)
try:
    with GGUFWriter(sys.argv[1], {}, {"x": (TensorType.F32, (1 << 10, 1 << 8))}) as writer:
        writer.write("x", rows)
except ModelError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file size")
def test_a_write_that_fails_leaves_nothing_and_says_how_much_is_needed(tmp_path):
    path = tmp_path / "model.gguf"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert f"cannot write {path}" in done.stdout
    assert "it takes 1048" in done.stdout
    assert not list(tmp_path.iterdir())
