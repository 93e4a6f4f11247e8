from pathlib import Path

import numpy as np
import pytest

import mtlqwen
from mtlqwen.config import ModelConfig
from mtlqwen.convert import convert, convert_gguf, tensor_type
from mtlqwen.errors import ModelError
from mtlqwen.gguf import TensorType, open_gguf
from mtlqwen.quants import dequantize

BF16 = Path(__file__).parents[1] / "data" / "demo-bf16.gguf"
SHIPPED = Path(mtlqwen.__file__).parent / "data"


@pytest.fixture(scope="module")
def f32(tmp_path_factory):
    path = tmp_path_factory.mktemp("f32") / "demo-f32.gguf"
    convert_gguf(BF16, path, "F32")
    return path


def arrays(gguf):
    return {name: (info.type, gguf.array(name)) for name, info in gguf.tensors.items()}


def assert_same_tensors(one, other):
    with open_gguf(one) as a, open_gguf(other) as b:
        left, right = arrays(a), arrays(b)
        assert left.keys() == right.keys()
        for name, (type_, raw) in left.items():
            assert type_ is right[name][0], name
            np.testing.assert_array_equal(raw, right[name][1], err_msg=name)


def test_bf16_to_f32_is_exact_and_keeps_the_metadata(f32):
    with open_gguf(BF16) as bf16, open_gguf(f32) as gguf:
        assert all(info.type is TensorType.F32 for info in gguf.tensors.values())
        for name, info in bf16.tensors.items():
            values = dequantize(bf16.array(name), info.type)
            np.testing.assert_array_equal(gguf.array(name).view(np.float32), values)
        assert bf16.metadata.keys() == gguf.metadata.keys()
        for key in bf16.metadata.keys() - {"general.file_type"}:
            assert bf16.encoded_value(key) == gguf.encoded_value(key)
        assert gguf.metadata["general.file_type"] == 0


def test_f32_back_to_bf16_gives_the_same_file(f32, tmp_path):
    convert_gguf(f32, tmp_path / "again.gguf", "BF16")
    assert (tmp_path / "again.gguf").read_bytes() == BF16.read_bytes()


def test_the_shipped_model_is_the_quantised_bf16_one(f32, tmp_path):
    convert_gguf(f32, tmp_path / "q8.gguf", "Q8_0")
    assert_same_tensors(tmp_path / "q8.gguf", SHIPPED / "demo-q8_0.gguf")


def test_the_shipped_files_are_small_and_noticed():
    sizes = [path.stat().st_size for path in SHIPPED.glob("*.gguf")]
    assert len(sizes) == 2
    assert sum(sizes) < 12.5e6
    notice = (SHIPPED / "NOTICE").read_text()
    assert "WordNet 3.1 Copyright 2011 by Princeton University" in notice
    assert "Python Software Foundation" in notice


def test_a_tensor_that_has_the_type_is_copied(tmp_path):
    source = SHIPPED / "demo-q8_0.gguf"
    convert(source, tmp_path / "same.gguf", "Q8_0")
    assert (tmp_path / "same.gguf").read_bytes() == source.read_bytes()


def test_a_file_may_be_converted_onto_itself(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes((SHIPPED / "demo-q8_0.gguf").read_bytes())
    convert(path, path, "BF16")
    with open_gguf(path) as gguf:
        assert gguf.tensors["token_embd.weight"].type is TensorType.BF16


def test_a_drafter_is_converted_too(tmp_path):
    convert(SHIPPED / "demo-dflash-q8_0.gguf", tmp_path / "drafter.gguf", "Q4_0")
    with open_gguf(tmp_path / "drafter.gguf") as gguf:
        assert gguf.tensors["fc.weight"].type is TensorType.Q4_0
        assert gguf.tensors["enc.output_norm.weight"].type is TensorType.F32


def test_options_that_a_file_cannot_use_are_refused(tmp_path):
    with pytest.raises(ModelError, match="keeps its name and tokenizer"):
        convert(BF16, tmp_path / "out.gguf", "Q8_0", name="other")


def test_q4_k_m_gives_more_bits_where_stock_files_do(f32, tmp_path):
    convert_gguf(f32, tmp_path / "q4.gguf", "Q4_K_M")
    with open_gguf(tmp_path / "q4.gguf") as gguf:
        config = ModelConfig.from_gguf(gguf)
        six = {name for name, info in gguf.tensors.items() if info.type is TensorType.Q6_K}
    more = [f"blk.{i}.ffn_down.weight" for i in (0, 3, 6, 7)]
    more += [f"blk.{i}.attn_qkv.weight" for i in (0, 6)]
    more += [f"blk.{i}.attn_v.weight" for i in (3, 7)]
    assert six == {"token_embd.weight", *more}
    assert config.num_layers == 8


def test_the_layers_with_more_bits_in_a_model_of_24():
    more = [
        i
        for i in range(24)
        if tensor_type(f"blk.{i}.ffn_down.weight", (1024, 3584), "Q4_K_M", 24, True).name == "Q6_K"
    ]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("name", "file_type", "tied", "expected"),
    [
        ("token_embd.weight", "Q4_K_M", True, "Q6_K"),
        ("token_embd.weight", "Q4_K_M", False, "Q4_K"),
        ("output.weight", "Q4_0", False, "Q6_K"),
        ("token_embd.weight", "Q8_0", True, "Q8_0"),
        ("blk.1.ssm_alpha.weight", "Q4_K_M", True, "Q4_K"),
        ("blk.1.ssm_conv1d.weight", "Q4_0", True, "F32"),
    ],
)
def test_types_of_single_tensors(name, file_type, tied, expected):
    assert tensor_type(name, (512, 256), file_type, 8, tied).name == expected


def test_rows_that_k_blocks_do_not_divide_become_q8_0():
    assert tensor_type("blk.0.attn_q.weight", (64, 96), "Q4_K_M", 8, True) is TensorType.Q8_0
