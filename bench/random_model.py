"""Write a model with random weights and the true shapes of a published one, for benchmarks.

    python bench/random_model.py 0.8b OUT.gguf --type Q4_K_M
    python bench/random_model.py 0.8b DRAFTER.gguf --drafter

Weights are drawn and quantised a few rows at a time, so memory stays small. The tokenizer is a
stub: the true size, special tokens and byte-level BPE rule, but made-up words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from mtlqwen.config import ModelConfig, config_metadata, expected_tensors
from mtlqwen.convert import FILE_TYPES, write_model
from mtlqwen.convert.tensor_source import TensorSource
from mtlqwen.drafter import DrafterConfig
from mtlqwen.drafter import config_metadata as drafter_metadata
from mtlqwen.drafter import expected_tensors as expected_drafter_tensors
from mtlqwen.drafter_runner import NUM_COMMON_TOKENS

# hidden, ffn, layers, query heads, K/V heads, DeltaNet key heads, DeltaNet value heads, tied
SIZES = {
    "tiny": (256, 512, 4, 2, 1, 2, 4, True),
    "0.8b": (1024, 3584, 24, 8, 2, 16, 16, True),
    "2b": (2048, 6144, 24, 8, 2, 16, 16, True),
    "4b": (2560, 9216, 32, 16, 4, 16, 32, True),
    "9b": (4096, 12288, 32, 16, 4, 16, 32, False),
    "27b": (5120, 17408, 64, 24, 4, 16, 48, False),
}
# layers, query heads, K/V heads, taps: 4b as published, 0.8b scaled down with its hidden size
DRAFTER_SIZES = {
    "tiny": (2, 4, 2, (0, 2)),
    "0.8b": (6, 16, 4, (1, 4, 7, 10, 13, 16, 19, 22)),
    "4b": (6, 32, 8, (1, 5, 9, 13, 17, 21, 25, 29)),
}
DRAFTER_BLOCK, DRAFTER_WINDOW = 16, 4096  # tokens; all layers but the last slide
NUM_VOCAB_ROWS = 248320
NUM_WORDS = 248044
NUM_TOKENS = 248077
RARE_SIZE = np.float32(0.5)  # of the rows of rare tokens: answers are of common ones, as most texts
SPECIAL_TOKENS = {
    248044: "<|endoftext|>",
    248045: "<|im_start|>",
    248046: "<|im_end|>",
    248053: "<|vision_start|>",
    248054: "<|vision_end|>",
    248056: "<|image_pad|>",
    248058: "<tool_call>",
    248059: "</tool_call>",
    248066: "<tool_response>",
    248067: "</tool_response>",
    248068: "<think>",
    248069: "</think>",
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def shape_of(size: str) -> ModelConfig:
    """The config of a published size."""
    hidden, ffn, layers, heads, kv_heads, key_heads, value_heads, tied = SIZES[size]
    return ModelConfig(
        name=f"random {size}",
        hidden_dim=hidden,
        ffn_dim=ffn,
        num_layers=layers,
        layer_kinds=tuple("delta" if (i + 1) % 4 else "attention" for i in range(layers)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=128,
        value_dim=128,
        num_channels=(2 * key_heads + value_heads) * 128,
        norm_eps=1e-6,
        max_position=262144,
        num_vocab_rows=NUM_VOCAB_ROWS,
        num_tokens=NUM_TOKENS,
        tied=tied,
    )


def random_source(
    name: str, shape: tuple[int, ...], num_layers: int, rng: np.random.Generator
) -> TensorSource:
    """Values whose sizes are those of a trained model, so that activations stay finite."""

    def gaussian(mean: float, deviation: float) -> Callable[[int, int], np.ndarray]:
        def rows(begin: int, end: int) -> np.ndarray:
            values = rng.standard_normal((end - begin, shape[-1]), np.float32)
            values *= np.float32(deviation)
            values += np.float32(mean)
            return values

        return rows

    def time_bias(begin: int, end: int) -> np.ndarray:
        step = rng.uniform(1e-3, 1e-1, (end - begin, shape[-1]))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)

    def decay(begin: int, end: int) -> np.ndarray:
        return -rng.uniform(1, 16, (end - begin, shape[-1])).astype(np.float32)

    def vocabulary(begin: int, end: int) -> np.ndarray:
        values = gaussian(0, 0.02)(begin, end)
        values[max(NUM_COMMON_TOKENS - begin, 0) :] *= RARE_SIZE
        return values

    if name in ("token_embd.weight", "output.weight"):
        return TensorSource(shape, vocabulary)
    local = name.rpartition("blk.")[2].partition(".")[2] or name
    if local == "ssm_a":
        return TensorSource(shape, decay)
    if local == "ssm_dt.bias":
        return TensorSource(shape, time_bias)
    if len(shape) == 1:
        return TensorSource(shape, gaussian(1, 0.02))
    if local == "ssm_conv1d.weight":
        return TensorSource(shape, gaussian(0, 0.3))
    if local in ("attn_output.weight", "ssm_out.weight", "ffn_down.weight"):
        return TensorSource(shape, gaussian(0, 0.02 / math.sqrt(2 * num_layers)))
    return TensorSource(shape, gaussian(0, 0.02))


def stub_tokenizer() -> dict[str, object]:
    """All words of two bytes, then words of three, each with the merge that makes it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable]
    letters += [chr(256 + i) for i in range(256 - len(printable))]
    tokens, merges = list(letters), []
    for first in range(NUM_WORDS):
        if len(tokens) >= NUM_WORDS:
            break
        for letter in letters[: NUM_WORDS - len(tokens)]:
            merges.append(f"{tokens[first]} {letter}")
            tokens.append(tokens[first] + letter)
    types = np.ones(NUM_VOCAB_ROWS, np.int32)
    for i in range(NUM_WORDS, NUM_VOCAB_ROWS):
        tokens.append(SPECIAL_TOKENS.get(i, f"<|special_{i}|>" if i < NUM_TOKENS else f"[PAD{i}]"))
        types[i] = 5 if i >= NUM_TOKENS else 3 if tokens[i].startswith("<|") else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 248046,
        "tokenizer.ggml.padding_token_id": 248044,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_random_model(size: str, out: Path, file_type: str, seed: int = 1) -> None:
    """Write OUT with the shapes of `size`; the same seed and type give the same file."""
    config = shape_of(size)
    metadata = {
        "general.architecture": "qwen35",
        "general.type": "model",
        "general.name": config.name,
        "general.file_type": FILE_TYPES[file_type],
        "general.quantization_version": 2,
    }
    metadata |= config_metadata(config, (11, 11, 10)) | stub_tokenizer()
    rng = np.random.Generator(np.random.SFC64(seed))
    sources = {
        name: random_source(name, shape, config.num_layers, rng)
        for name, shape in expected_tensors(config).items()
    }
    write_model(out, metadata, sources, file_type, config.num_layers, config.tied)


def write_random_drafter(size: str, out: Path, file_type: str, seed: int = 1) -> None:
    """Write OUT, a DFlash drafter for the random model of `size`."""
    target = shape_of(size)
    num_layers, num_heads, num_kv_heads, taps = DRAFTER_SIZES[size]
    windows = (DRAFTER_WINDOW,) * (num_layers - 1) + (0,)
    config = DrafterConfig(
        hidden_dim=target.hidden_dim,
        ffn_dim=target.ffn_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        rope_theta=1e7,
        norm_eps=1e-6,
        num_vocab_rows=NUM_VOCAB_ROWS,
        block_size=DRAFTER_BLOCK,
        mask_id=NUM_TOKENS,
        taps=taps,
        windows=windows,
        causal=tuple(window > 0 for window in windows),
    )
    metadata = {
        "general.architecture": "dflash",
        "general.type": "model",
        "general.name": f"random drafter {size}",
        "general.file_type": FILE_TYPES[file_type],
        "general.quantization_version": 2,
        "dflash.context_length": target.max_position,
    } | drafter_metadata(config)
    rng = np.random.Generator(np.random.SFC64(seed))
    sources = {
        name: random_source(name, shape, num_layers, rng)
        for name, shape in expected_drafter_tensors(config).items()
    }
    write_model(out, metadata, sources, file_type, num_layers, tied=True)


@click.command()
@click.argument("size", type=click.Choice(list(SIZES)))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--type", "file_type", type=click.Choice(list(FILE_TYPES)), default="Q4_K_M")
@click.option("--seed", default=1, show_default=True)
@click.option("--drafter", is_flag=True, help="Write a DFlash drafter for it instead.")
def main(size: str, out: Path, file_type: str, seed: int, drafter: bool) -> None:
    """Write a model with random weights and the shapes of SIZE to OUT."""
    start = time.perf_counter()
    if drafter and size not in DRAFTER_SIZES:
        raise click.UsageError(f"there are drafters for {', '.join(DRAFTER_SIZES)}, not {size}")
    write = write_random_drafter if drafter else write_random_model
    write(size, out, file_type, seed)
    seconds = time.perf_counter() - start
    click.echo(f"{out}: {out.stat().st_size / 2**30:.2f} GiB in {seconds:.0f} s", err=True)


if __name__ == "__main__":
    main()
