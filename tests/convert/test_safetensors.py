import json
import struct

import numpy as np
import pytest
from hf_directory import write_directory

from mtlqwen.convert.safetensors import Checkpoint
from mtlqwen.errors import ModelError

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4.0)}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_are_read_as_f32(tmp_path, dtype):
    checkpoint = Checkpoint(write_directory(tmp_path / "hf", {}, TENSORS, dtype=dtype))
    for name, values in TENSORS.items():
        found = checkpoint.tensors[name].to_f32()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values)


def test_files_of_an_index_are_read_together(tmp_path):
    checkpoint = Checkpoint(write_directory(tmp_path / "hf", {}, TENSORS, num_files=2))
    assert checkpoint.tensors.keys() == TENSORS.keys()


def test_a_missing_file_of_the_index_is_named(tmp_path):
    directory = write_directory(tmp_path / "hf", {}, TENSORS, num_files=2)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        Checkpoint(directory)


def test_an_index_cannot_point_outside(tmp_path):
    directory = write_directory(tmp_path / "hf", {}, TENSORS)
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside its directory"):
        Checkpoint(directory)


def test_a_directory_without_weights_or_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        Checkpoint(tmp_path)


def entry(**changes):
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (entry(dtype="F8_E4M3"), "dtype F8_E4M3"),
        (entry(shape=[1 << 62, 4]), "should lie at bytes 0 to 8"),
        (entry(shape=[-2]), r"has shape \[-2\]"),
        (entry(shape="2"), "has shape 2"),
        (entry(data_offsets=[0]), r"offsets \[0\]"),
        (entry(data_offsets=[8, 16]), "should lie at bytes 8 to 16 of 8"),
        ({"x": {"dtype": "F32"}}, "damaged header"),
        ([1], "damaged header"),
    ],
)
def test_a_damaged_header_is_refused_with_the_place(tmp_path, header, message):
    (tmp_path / "config.json").write_text("{}")
    raw = json.dumps(header).encode()
    data = struct.pack("<Q", len(raw)) + raw + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"1234", struct.pack("<Q", 1 << 63), b"\2\0\0\0\0\0\0\0{["])
def test_a_file_cut_or_with_a_lying_length_is_refused(tmp_path, raw):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)
