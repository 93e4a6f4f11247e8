"""Make a GGUF of a Hugging Face directory, or of another GGUF in a new tensor type."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ModelConfig, is_always_f32
from ..drafter import CODEBOOKS
from ..errors import ModelError
from ..gguf import GGUFWriter, TensorType, open_gguf
from ..kernels import FLOAT_TYPES
from .drafter import drafter_config, drafter_metadata, drafter_sources
from .safetensors import Checkpoint
from .target import target_config, target_metadata, target_sources
from .tensor_source import TensorSource, from_gguf
from .tokenizer import tokenizer_metadata

# Name of a file type -> its number in GGUF files (general.file_type).
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}

_BODY_TYPES = {
    "F32": TensorType.F32,
    "F16": TensorType.F16,
    "BF16": TensorType.BF16,
    "Q8_0": TensorType.Q8_0,
    "Q4_0": TensorType.Q4_0,
    "Q4_K_M": TensorType.Q4_K,
}
_TARGETS = ("qwen3_5", "qwen3_5_text")

Progress = Callable[[int, int], None]  # values written, values in all


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    file_type: str = "Q8_0",
    *,
    name: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write `out` from a Hugging Face directory (target or DFlash drafter) or a GGUF file.

    file_type is one of FILE_TYPES. `out` appears, or is replaced, only when it is complete.
    Raises ModelError for a model that is damaged or not supported, and if `out` cannot be written.
    """
    if Path(source).is_dir():
        convert_hf(source, out, file_type, name=name, tokenizer=tokenizer, progress=progress)
    elif name is not None or tokenizer is not None:
        raise ModelError(f"{source} is no directory: a GGUF file keeps its name and tokenizer")
    else:
        convert_gguf(source, out, file_type, progress=progress)


def convert_hf(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    file_type: str = "Q8_0",
    *,
    name: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Convert config.json, *.safetensors, tokenizer and chat template of a directory.

    `name` is the model's name (the directory's if not given). `tokenizer` is another directory to
    take the tokenizer from; a drafter's is its target's, and can be left out.
    """
    _check_file_type(file_type)
    checkpoint = Checkpoint(Path(directory))
    name = name or Path(directory).resolve().name
    tokenizer_dir = Path(tokenizer or directory)
    has_tokenizer = (tokenizer_dir / "tokenizer.json").exists()
    if _is_drafter(checkpoint):
        architecture = "dflash"
        drafter = drafter_config(checkpoint)
        keys = drafter_metadata(checkpoint, drafter)
        sources = drafter_sources(checkpoint, drafter)
        num_rows, tied, num_layers = drafter.num_vocab_rows, True, drafter.num_layers
    else:
        architecture = "qwen35"
        config = target_config(checkpoint, name)
        keys = target_metadata(checkpoint, config)
        sources = target_sources(checkpoint, config)
        num_rows, tied, num_layers = config.num_vocab_rows, config.tied, config.num_layers
    if tokenizer is not None or architecture == "qwen35" or has_tokenizer:
        keys = keys | tokenizer_metadata(tokenizer_dir, num_rows)
    metadata = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.file_type": FILE_TYPES[file_type],
        "general.quantization_version": 2,
    } | keys
    write_model(out, metadata, sources, file_type, num_layers, tied, progress)


def convert_gguf(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    file_type: str,
    *,
    progress: Progress | None = None,
) -> None:
    """Write a model's file again with its tensors in another type; metadata is kept.

    Tensors that have the type already are copied. Quantising what is quantised already loses more
    than quantising the original: start from F32, F16 or BF16 where possible.
    """
    _check_file_type(file_type)
    with open_gguf(path) as gguf:
        if gguf.architecture == "qwen35":
            config = ModelConfig.from_gguf(gguf)
            num_layers, tied = config.num_layers, config.tied
        else:
            block_count = gguf.metadata.get("dflash.block_count")
            if not isinstance(block_count, int):
                raise ModelError(f"{path}: the key dflash.block_count is missing")
            num_layers, tied = block_count, True
        metadata: dict[str, Any] = {
            key: gguf.encoded_value(key)
            for key in gguf.metadata
            if not key.startswith("split.") and key != "general.alignment"
        }
        metadata["general.file_type"] = FILE_TYPES[file_type]
        metadata["general.quantization_version"] = 2
        sources = {name: from_gguf(gguf, name) for name in gguf.tensors}
        write_model(out, metadata, sources, file_type, num_layers, tied, progress)


def tensor_type(
    name: str, shape: tuple[int, ...], file_type: str, num_layers: int, tied: bool
) -> TensorType:
    """The type of a tensor in a file of `file_type`, by the rules of stock llama-quantize files.

    Vectors and convolution taps are F32. In 4 bit files the head is Q6_K, and in Q4_K_M files so
    are attn_v, attn_qkv and ffn_down of the first and last eighth of the layers and of every third
    layer between. Rows that blocks of 256 do not divide are Q8_0. A drafter's codebooks are BF16
    where the rest is quantised.
    """
    if is_always_f32(name, shape):
        return TensorType.F32
    type_ = _BODY_TYPES[file_type]
    if name in CODEBOOKS and type_ not in FLOAT_TYPES:
        return TensorType.BF16
    is_head = name == ("token_embd.weight" if tied else "output.weight")
    if (is_head and file_type in ("Q4_0", "Q4_K_M")) or (
        file_type == "Q4_K_M" and _has_more_bits(name, num_layers)
    ):
        type_ = TensorType.Q6_K
    return TensorType.Q8_0 if shape[-1] % type_.block_values else type_


def _has_more_bits(name: str, num_layers: int) -> bool:
    prefix, _, rest = name.partition(".")
    index, _, local = rest.partition(".")
    if prefix != "blk" or local not in ("attn_v.weight", "attn_qkv.weight", "ffn_down.weight"):
        return False
    eighth, layer = num_layers // 8, int(index)
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def write_model(
    out: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    sources: Mapping[str, TensorSource],
    file_type: str,
    num_layers: int,
    tied: bool,
    progress: Progress | None = None,
) -> None:
    """Write a file of `file_type` tensor by tensor. ModelError if a tensor or `out` cannot be."""
    tensors = {
        name: (tensor_type(name, source.shape, file_type, num_layers, tied), source.shape)
        for name, source in sources.items()
    }
    total = sum(int(np.prod(source.shape)) for source in sources.values())
    done = 0
    with GGUFWriter(out, metadata, tensors) as writer:
        for name, source in sources.items():
            type_ = tensors[name][0]
            try:
                for rows in source.encoded(type_):
                    writer.write(name, rows)
                    done += rows.size // type_.block_bytes * type_.block_values
                    if progress is not None:
                        progress(done, total)
            except ValueError as error:
                raise ModelError(f"tensor {name!r} cannot be written: {error}") from error


def _check_file_type(file_type: str) -> None:
    if file_type not in FILE_TYPES:
        raise ModelError(
            f"there is no file type {file_type!r}; choose one of {', '.join(FILE_TYPES)}"
        )


def _is_drafter(checkpoint: Checkpoint) -> bool:
    """Whether the directory is a drafter; ModelError if it is neither that nor a target."""
    kind = checkpoint.config.get("model_type")
    architectures = str(checkpoint.config.get("architectures"))
    if "'DFlashDraftModel'" in architectures or "'DFlash2DraftModel'" in architectures:
        return True
    if kind in _TARGETS:
        return False
    raise ModelError(
        f"{checkpoint.directory} is a {kind!r} model, architectures {architectures};"
        f" MTLQwen converts dense Qwen 3.5 models ({' or '.join(_TARGETS)}) and DFlash drafters"
        " (DFlashDraftModel or DFlash2DraftModel)"
    )
