"""What a model file holds and what running it takes: the answer of `mtlqwen info`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .config import TOKEN_TYPE_UNUSED, ModelConfig
from .gguf import GGUF, open_gguf
from .gguf_header import StringArray

_BANKS = 2  # a step reads one copy of the DeltaNet state and writes the other


@dataclass(frozen=True)
class TypeShare:
    """Tensors of one type."""

    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True)
class TokenizerInfo:
    model: str
    pre: str
    num_tokens: int
    num_merges: int
    eos: str | None
    has_chat_template: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a run takes. Weights stay in the mapped file, shared by all processes."""

    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    kv_bytes_at_max_position: int


@dataclass(frozen=True)
class ModelInfo:
    path: str
    num_files: int
    file_bytes: int
    architecture: str
    name: str
    num_parameters: int
    network: dict[str, Any]  # fields of ModelConfig; of a drafter the `dflash.*` keys
    tensor_types: dict[str, TypeShare]
    tokenizer: TokenizerInfo | None
    memory: MemoryPlan | None  # of a model that runs alone

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)


def model_info(path: str | os.PathLike[str]) -> ModelInfo:
    """Describe a model or drafter. ModelError if MTLQwen cannot run it."""
    with open_gguf(path) as gguf:
        memory = None
        if gguf.architecture == "qwen35":
            config = ModelConfig.from_gguf(gguf)
            network = asdict(config) | {"layer_kinds": list(config.layer_kinds)}
            memory = _memory_plan(gguf, config)
        else:
            network = {
                key.removeprefix("dflash."): value.tolist() if hasattr(value, "tolist") else value
                for key, value in gguf.metadata.items()
                if key.startswith("dflash.")
            }
        name = gguf.metadata.get("general.name")
        return ModelInfo(
            path=str(gguf.path),
            num_files=len(gguf.shards),
            file_bytes=gguf.num_bytes,
            architecture=gguf.architecture,
            name=name if isinstance(name, str) else gguf.path.stem,
            num_parameters=sum(prod(info.shape) for info in gguf.tensors.values()),
            network=network,
            tensor_types=_tensor_types(gguf),
            tokenizer=_tokenizer_info(gguf),
            memory=memory,
        )


def render(info: ModelInfo) -> RenderableType:
    """The same for a terminal."""
    head = _pairs(
        {
            "file": f"{info.path} ({_size(info.file_bytes)}"
            + (f" in {info.num_files} files)" if info.num_files > 1 else ")"),
            "name": info.name,
            "architecture": info.architecture,
            "parameters": f"{info.num_parameters:,}",
        }
    )
    types = Table("type", "tensors", "parameters", "size", title="Tensors", title_justify="left")
    for name, share in info.tensor_types.items():
        row = [f"{share.num_tensors:,}", f"{share.num_parameters:,}", _size(share.num_bytes)]
        types.add_row(name, *row)
    for column in types.columns[1:]:
        column.justify = "right"
    parts: list[RenderableType] = [head, *_section("Network", _network_rows(info)), Text(), types]
    if info.tokenizer is not None:
        tokenizer = info.tokenizer
        rows = {
            "rule": f"{tokenizer.model}, {tokenizer.pre}",
            "tokens": f"{tokenizer.num_tokens:,}",
            "merges": f"{tokenizer.num_merges:,}",
            "end of text": tokenizer.eos or "not given",
            "chat template": "yes" if tokenizer.has_chat_template else "no",
        }
        parts += _section("Tokenizer", rows)
    if info.memory is not None:
        memory, length = info.memory, info.network["max_position"]
        rows = {
            "weights": f"{_size(memory.weight_bytes)}, mapped from the file",
            "K/V cache": f"{_size(memory.kv_bytes_per_token)} a token,"
            f" {_size(memory.kv_bytes_at_max_position)} at {length:,} tokens",
            "DeltaNet state": f"{_size(memory.state_bytes_per_sequence)} a sequence",
        }
        parts += _section("Memory", rows)
    return Group(*parts)


def _memory_plan(gguf: GGUF, config: ModelConfig) -> MemoryPlan:
    num_attention = config.layer_kinds.count("attention")
    num_delta = config.num_layers - num_attention
    kv_bytes = num_attention * 2 * config.num_kv_heads * config.head_dim * 2
    state_values = config.num_value_heads * config.key_dim * config.value_dim
    tail_values = 3 * config.num_channels
    return MemoryPlan(
        weight_bytes=sum(info.num_bytes for info in gguf.tensors.values()),
        kv_bytes_per_token=kv_bytes,
        state_bytes_per_sequence=_BANKS * num_delta * (state_values + tail_values) * 4,
        kv_bytes_at_max_position=kv_bytes * config.max_position,
    )


def _tensor_types(gguf: GGUF) -> dict[str, TypeShare]:
    """Shares by type name, the largest first."""
    shares: dict[str, TypeShare] = {}
    for info in gguf.tensors.values():
        share = shares.get(info.type.name, TypeShare(0, 0, 0))
        shares[info.type.name] = TypeShare(
            share.num_tensors + 1,
            share.num_parameters + prod(info.shape),
            share.num_bytes + info.num_bytes,
        )
    return dict(sorted(shares.items(), key=lambda item: -item[1].num_bytes))


def _tokenizer_info(gguf: GGUF) -> TokenizerInfo | None:
    metadata = gguf.metadata
    tokens, merges = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    if not isinstance(tokens, StringArray) or not isinstance(merges, StringArray):
        return None
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    eos_text = f"{tokens[eos]} ({eos})" if isinstance(eos, int) and 0 <= eos < len(tokens) else None
    types = np.asarray(metadata.get("tokenizer.ggml.token_type", 0))
    return TokenizerInfo(
        model=str(metadata.get("tokenizer.ggml.model")),
        pre=str(metadata.get("tokenizer.ggml.pre")),
        num_tokens=len(tokens) - int(np.count_nonzero(types == TOKEN_TYPE_UNUSED)),
        num_merges=len(merges),
        eos=eos_text,
        has_chat_template="tokenizer.chat_template" in metadata,
    )


def _network_rows(info: ModelInfo) -> dict[str, str]:
    net = info.network
    if info.architecture != "qwen35":
        return {key: str(value) for key, value in net.items()}
    num_attention = net["layer_kinds"].count("attention")
    return {
        "layers": f"{net['num_layers']}: {net['num_layers'] - num_attention} gated DeltaNet,"
        f" {num_attention} full attention",
        "hidden, MLP": f"{net['hidden_dim']}, {net['ffn_dim']}",
        "attention heads": f"{net['num_heads']} query, {net['num_kv_heads']} key/value,"
        f" {net['head_dim']} wide",
        "rotary": f"{net['rotary_dim']} lanes, base {net['rope_theta']:g}",
        "DeltaNet heads": f"{net['num_key_heads']} key, {net['num_value_heads']} value,"
        f" {net['key_dim']} wide",
        "vocabulary": f"{net['num_vocab_rows']:,} rows, {net['num_tokens']:,} tokens, head "
        + ("tied to the table" if net["tied"] else "apart"),
        "context": f"{net['max_position']:,} tokens",
    }


def _section(title: str, rows: dict[str, str]) -> list[RenderableType]:
    return [Text(), Text(title, style="italic"), _pairs(rows)]


def _pairs(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows.items():
        table.add_row(Text(key), Text(value))
    return table


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
