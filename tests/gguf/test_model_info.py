import io
import json
from pathlib import Path

from rich.console import Console
from small_gguf import CONFIG, small_metadata, write_small

import mtlqwen
from mtlqwen.info import model_info, render

SHIPPED = Path(mtlqwen.__file__).parent / "data"


def rendered(info, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(render(info))
    return console.file.getvalue()


def test_the_memory_plan_follows_from_the_shapes(tmp_path):
    memory = model_info(write_small(tmp_path / "m.gguf")).memory
    assert memory.kv_bytes_per_token == 1 * 2 * 1 * 4 * 2  # layers, K and V, heads, width, f16
    assert memory.kv_bytes_at_max_position == 16 * CONFIG.max_position
    state, tail = 2 * 4 * 4, 3 * 16  # value heads * key_dim * value_dim; three rows of channels
    assert memory.state_bytes_per_sequence == 2 * (state + tail) * 4  # two banks, f32


def test_the_demo_model_is_described():
    info = model_info(SHIPPED / "demo-q8_0.gguf")
    assert info.num_parameters == 9_480_240
    assert info.tensor_types["Q8_0"].num_tensors == 63
    assert info.tokenizer.eos == "<|im_end|> (4084)"
    shown = rendered(info)
    for text in ("9,480,240", "Q8_0", "8: 6 gated DeltaNet, 2 full attention", "4.0 KiB a token"):
        assert text in shown
    assert json.loads(json.dumps(info.to_json()))["network"]["hidden_dim"] == 256


def test_a_path_that_is_wider_than_the_terminal_is_shown_whole(tmp_path):
    path = write_small(tmp_path / f"{'long' * 20}.gguf")
    assert str(path) in "".join(rendered(model_info(path), width=60).split()).removeprefix("file")


def test_a_drafter_is_described_without_a_memory_plan():
    info = model_info(SHIPPED / "demo-dflash-q8_0.gguf")
    assert (info.architecture, info.memory) == ("dflash", None)
    assert info.network["target_layers"] == [2, 4, 6]
    assert "target_layers" in rendered(info)
    json.dumps(info.to_json())


def test_a_model_without_a_tokenizer_is_described(tmp_path):
    keys = {k: v for k, v in small_metadata().items() if not k.startswith("tokenizer.")}
    info = model_info(write_small(tmp_path / "m.gguf", metadata=keys))
    assert info.tokenizer is None
    assert "small" in rendered(info)
