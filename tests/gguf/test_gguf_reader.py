import struct

import numpy as np
import pytest
from small_gguf import (
    ARRAY,
    CONFIG,
    STRING,
    TOKENIZER,
    header,
    key,
    small_metadata,
    tensor,
    text,
    u32_key,
    write_small,
)

from mtlqwen.config import expected_tensors
from mtlqwen.errors import ModelError
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf


def opened(tmp_path, raw):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return open_gguf(path)


def test_what_was_written_is_read(tmp_path):
    with open_gguf(write_small(tmp_path / "small.gguf")) as gguf:
        shapes = expected_tensors(CONFIG)
        assert {name: info.shape for name, info in gguf.tensors.items()} == shapes
        for i, (name, shape) in enumerate(shapes.items()):
            values = gguf.array(name).view(np.float32)
            assert values.shape == (int(np.prod(shape[:-1])), shape[-1])
            np.testing.assert_array_equal(values.reshape(-1), i + np.arange(np.prod(shape)))


def test_every_type_of_metadata_value_survives(tmp_path):
    values = {
        "general.architecture": "qwen35",
        "int": 7,
        "float": 0.5,
        "true": True,
        "text": "naïve ☃",
        "strings": ["a", "", "ü"],
        "empty": [],
    }
    for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "?"):
        values[f"scalar {dtype}"] = np.dtype(dtype).type(1)
        values[f"array {dtype}"] = np.array([0, 1, 1], dtype)
    path = tmp_path / "values.gguf"
    with GGUFWriter(path, values, {}):
        pass
    with open_gguf(path) as gguf:
        assert gguf.metadata.keys() == values.keys()
        for name, value in values.items():
            found = gguf.metadata[name]
            if isinstance(value, np.ndarray):
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(found, value)
            else:
                assert (list(found) if isinstance(value, list) else found) == value


def test_strings_can_be_indexed_sliced_and_iterated(tmp_path):
    tokens = TOKENIZER["tokenizer.ggml.tokens"]
    with open_gguf(write_small(tmp_path / "small.gguf")) as gguf:
        strings = gguf.metadata["tokenizer.ggml.tokens"]
        assert list(strings) == tokens == [strings[i] for i in range(len(tokens))]
        assert (strings[-1], strings[1:3]) == (tokens[-1], tokens[1:3])
        with pytest.raises(IndexError):
            strings[len(tokens)]


def test_metadata_can_be_copied_as_encoded(tmp_path):
    source = write_small(tmp_path / "small.gguf")
    copy = tmp_path / "copy.gguf"
    with open_gguf(source) as gguf:
        metadata = {name: gguf.encoded_value(name) for name in gguf.metadata}
        with GGUFWriter(copy, metadata, {"x": (TensorType.F32, (1,))}) as writer:
            writer.write("x", np.zeros((1, 4), np.uint8))
        with open_gguf(copy) as again:
            for name in gguf.metadata:
                assert again.encoded_value(name) == gguf.encoded_value(name)


def test_an_array_outlives_its_file(tmp_path):
    gguf = open_gguf(write_small(tmp_path / "small.gguf"))
    array = gguf.array("output_norm.weight")
    gguf.close()
    assert array.view(np.float32)[0, 0] == len(expected_tensors(CONFIG)) - 1


def test_alignment_of_the_file_is_followed(tmp_path):
    align = u32_key("general.alignment", 64)
    raw = header([align], [tensor("x", [2], 0, 64)])
    raw += bytes(-len(raw) % 64) + bytes(64) + struct.pack("<2f", 1, 2)
    with opened(tmp_path, raw) as gguf:
        assert gguf.array("x").view(np.float32).tolist() == [[1, 2]]


def test_version_2_is_read(tmp_path):
    with opened(tmp_path, header(version=2)) as gguf:
        assert gguf.architecture == "qwen35"


def split_model(tmp_path, count=3, **changes):
    """The small model in `count` files; `changes` overrides keys of the last one."""
    shapes = list(expected_tensors(CONFIG).items())
    paths = [tmp_path / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        keys = {"split.no": np.uint16(i), "split.count": np.uint16(count)}
        keys["split.tensors.count"] = np.int32(len(shapes))
        metadata = (small_metadata() if i == 0 else {}) | keys
        write_small(
            path,
            metadata=metadata | (changes if i == count - 1 else {}),
            shapes=dict(shapes[i::count]),
        )
    return paths


def test_split_files_are_one_model(tmp_path):
    paths = split_model(tmp_path)
    with open_gguf(paths[0]) as gguf:
        assert gguf.tensors.keys() == expected_tensors(CONFIG).keys()
        assert len(gguf.shards) == 3
        assert gguf.num_bytes == sum(path.stat().st_size for path in paths)
        assert gguf.array("output_norm.weight").shape == (1, 32)


def test_a_missing_split_file_is_named(tmp_path):
    paths = split_model(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelError, match=paths[1].name):
        open_gguf(paths[0])


def test_a_later_split_file_names_the_first(tmp_path):
    paths = split_model(tmp_path)
    with pytest.raises(ModelError, match=f"open {paths[0].name}"):
        open_gguf(
            write_small(
                paths[1],
                metadata=small_metadata() | {"split.no": np.uint16(1), "split.count": np.uint16(3)},
            )
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.no": np.uint16(1)}, "should be split file 2 of 3"),
        ({"split.count": np.uint16(4)}, "should be split file 2 of 3"),
        ({"split.no": "two"}, "split.no is 'two'"),
    ],
)
def test_split_files_of_another_model_are_refused(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        open_gguf(split_model(tmp_path, **changes)[0])


def test_a_split_model_under_another_name_is_refused(tmp_path):
    path = split_model(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"-00001-of-00003\.gguf"):
        open_gguf(path)


def test_a_tensor_in_two_split_files_is_refused(tmp_path):
    paths = split_model(tmp_path, 2)
    keys = {"split.no": np.uint16(1), "split.count": np.uint16(2)}
    write_small(paths[1], metadata=keys)
    with pytest.raises(ModelError, match="is also in an earlier split file"):
        open_gguf(paths[0])


HUGE = 1 << 63
F32_X = tensor("x", [2], 0, 0)
HOSTILE = {
    "no magic": (b"GGML" + bytes(60), "starts with b'GGML'"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html>", "web page"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "big endian": (header(version=3 << 24), "big-endian version 3"),
    "2^63 tensors": (header(num_tensors=HUGE), f"tensor count is {HUGE}"),
    "2^63 keys": (header(num_keys=HUGE), f"key count is {HUGE}"),
    "2^63 array items": (
        header([key("a", ARRAY, struct.pack("<IQ", 4, HUGE))]),
        f"item of 'a' count is {HUGE}",
    ),
    "2^63 strings": (
        header([key("a", ARRAY, struct.pack("<IQ", STRING, HUGE))]),
        f"item of 'a' count is {HUGE}",
    ),
    "string of 2^63 bytes": (header([key("a", STRING, struct.pack("<Q", HUGE))]), f"is {HUGE}"),
    "array string of 2^64 - 1 bytes": (
        header([key("a", ARRAY, struct.pack("<IQQ", STRING, 1, (1 << 64) - 1))]),
        "a string of 'a' runs past",
    ),
    "key name of 2^63 bytes": (header([struct.pack("<Q", HUGE)]), f"key 1 is {HUGE} bytes long"),
    "key not UTF-8": (header([key(b"\xff\xfe", 4, bytes(4))]), "not valid UTF-8"),
    "value not UTF-8": (header([key("a", STRING, text(b"\xc3("))]), "'a' is not valid UTF-8"),
    "key twice": (header([u32_key("a", 1), u32_key("a", 1)]), "'a' appears twice"),
    "unknown value type": (header([key("a", 13, bytes(8))]), "'a' is 13"),
    "array of arrays": (
        header([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(32))]),
        "array of arrays",
    ),
    "truth value 2": (header([key("a", 7, b"\2")]), "neither 0 nor 1"),
    "alignment 0": (header([u32_key("general.alignment", 0)]), "general.alignment is 0"),
    "alignment 48": (header([u32_key("general.alignment", 48)]), "general.alignment is 48"),
    "alignment as text": (
        header([key("general.alignment", STRING, text("32"))]),
        "general.alignment is '32'",
    ),
    "no dimension": (header(tensors=[tensor("x", [], 0, 0)]), "has 0 dimensions"),
    "five dimensions": (header(tensors=[tensor("x", [1] * 5, 0, 0)]), "has 5 dimensions"),
    "2^32 - 1 dimensions": (
        header(tensors=[tensor("x", [], 0, 0, num_dims=(1 << 32) - 1)]),
        "4294967295 dimensions",
    ),
    "empty dimension": (header(tensors=[tensor("x", [2, 0], 0, 0)]), "is empty"),
    "dimensions of 2^63": (
        header(tensors=[tensor("x", [HUGE, HUGE], 0, 0)], data_bytes=64),
        "ends at byte",
    ),
    "unknown tensor type": (
        header(tensors=[tensor("x", [2], 999, 0)]),
        r"'x' has the type unknown",
    ),
    "known foreign type": (header(tensors=[tensor("x", [256], 21, 0)]), r"IQ3_S \(21\).*Q4_K_M"),
    "row not in blocks": (
        header(tensors=[tensor("x", [33], 8, 0)], data_bytes=64),
        "multiples of 32 values, not 33",
    ),
    "K row not in blocks": (
        header(tensors=[tensor("x", [128], 12, 0)], data_bytes=256),
        "multiples of 256 values, not 128",
    ),
    "offset past the end": (header(tensors=[tensor("x", [2], 0, 1 << 40)]), "ends at byte"),
    "offset of 2^64 - 32": (header(tensors=[tensor("x", [2], 0, (1 << 64) - 32)]), "ends at byte"),
    "offset not aligned": (
        header(tensors=[tensor("x", [2], 0, 4)], data_bytes=64),
        "offset 4, not a multiple of 32",
    ),
    "data truncated": (header(tensors=[F32_X], data_bytes=7), "truncated"),
    "tensor twice": (header(tensors=[F32_X, F32_X], data_bytes=64), "'x' appears twice"),
    "tensors overlap": (
        header(tensors=[tensor("x", [16], 0, 0), tensor("y", [2], 0, 32)], data_bytes=64),
        "'x' and 'y' overlap",
    ),
    "tensor name not UTF-8": (header(tensors=[tensor(b"\xff", [2], 0, 0)]), "not valid UTF-8"),
    "empty": (b"", "is empty"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_with_its_name_and_the_reason(tmp_path, case):
    raw, message = HOSTILE[case]
    with pytest.raises(ModelError, match=message) as caught:
        opened(tmp_path, raw)
    assert "model.gguf" in str(caught.value)


def test_file_cut_anywhere_is_refused(tmp_path):
    raw = write_small(tmp_path / "small.gguf").read_bytes()
    for size in range(0, len(raw) - 31, 7):  # the last tensor is 32 bytes long
        with pytest.raises(ModelError):
            opened(tmp_path, raw[:size])


def test_bad_text_in_an_array_is_found_when_it_is_read(tmp_path):
    raw = header([key("a", ARRAY, struct.pack("<IQ", STRING, 2) + text("ok") + text(b"\xff"))])
    with opened(tmp_path, raw) as gguf:
        strings = gguf.metadata["a"]
        assert strings[0] == "ok"
        for read in (lambda: strings[1], lambda: list(strings)):
            with pytest.raises(ModelError, match=r"a\[1\] is not valid UTF-8"):
                read()


@pytest.mark.parametrize("name", ["qwen35moe", "qwen3", "qwen3next", "llama", "clip"])
def test_other_architectures_are_refused_by_name(tmp_path, name):
    path = tmp_path / "other.gguf"
    with GGUFWriter(path, {"general.architecture": name}, {}):
        pass
    with pytest.raises(ModelError, match=f"architecture '{name}'.*'qwen35'"):
        open_gguf(path)


def test_the_architecture_is_refused_before_its_tensor_types(tmp_path):
    raw = header(tensors=[tensor("x", [256], 21, 0)]).replace(b"qwen35", b"llama3")
    with pytest.raises(ModelError, match="architecture 'llama3'"):
        opened(tmp_path, raw)


def test_a_directory_points_to_convert(tmp_path):
    with pytest.raises(ModelError, match="mtlqwen convert"):
        open_gguf(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nothing\.gguf: No such file"):
        open_gguf(tmp_path / "nothing.gguf")


def test_a_device_is_not_opened():
    with pytest.raises(ModelError, match="not a regular file"):
        open_gguf("/dev/zero")
