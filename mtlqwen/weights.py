"""The tensors of a model where the mapped file has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .config import ModelConfig
from .device import Buffer, Device
from .gguf import GGUF, TensorType


@dataclass(frozen=True)
class Tensor:
    """Rows of one tensor in device memory."""

    buffer: Buffer
    offset_bytes: int
    type: TensorType
    shape: tuple[int, ...]  # (out, in) for a matrix

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])

    @property
    def num_bytes(self) -> int:
        return self.row_bytes * math.prod(self.shape[:-1])

    def first_rows(self, count: int) -> Tensor:
        return replace(self, shape=(count, *self.shape[1:]))


@dataclass(frozen=True)
class AttentionMixer:
    """Attention. A target's is gated: `query` has q lanes, then as many gates, head by head."""

    query: Tensor  # [num_heads * 2 * head_dim, hidden]; a drafter's [num_heads * head_dim, hidden]
    key: Tensor  # [num_kv_heads * head_dim, hidden]
    value: Tensor  # [num_kv_heads * head_dim, hidden]
    query_norm: Tensor  # [head_dim]
    key_norm: Tensor  # [head_dim]
    output: Tensor  # [hidden, num_heads * head_dim]


@dataclass(frozen=True)
class DeltaMixer:
    """Gated DeltaNet, value heads in GGUF order: value head j uses key head j % num_key_heads."""

    qkv: Tensor  # [num_channels, hidden]
    gate: Tensor  # [num_value_heads * value_dim, hidden]
    alpha: Tensor  # [num_value_heads, hidden]
    beta: Tensor  # [num_value_heads, hidden]
    conv: Tensor  # [4, num_channels], tap 3 = current token
    decay: Tensor  # ssm_a = -exp(A_log), [num_value_heads]
    dt_bias: Tensor  # [num_value_heads]
    norm: Tensor  # [value_dim]
    output: Tensor  # [hidden, num_value_heads * value_dim]


@dataclass(frozen=True)
class Layer:
    mixer_norm: Tensor
    mixer: AttentionMixer | DeltaMixer
    ffn_norm: Tensor
    ffn_gate: Tensor  # [ffn, hidden]
    ffn_up: Tensor  # [ffn, hidden]
    ffn_down: Tensor  # [hidden, ffn]


class MappedTensors:
    """The tensors of a file by name, in device memory where its mapping has them."""

    def __init__(self, device: Device, gguf: GGUF):
        self._gguf = gguf
        self._shards = [device.wrap(shard) for shard in gguf.shards]

    def __getitem__(self, name: str) -> Tensor:
        info = self._gguf.tensors[name]
        return Tensor(self._shards[info.shard], info.offset_bytes, info.type, info.shape)

    def attention(self, layer: int) -> AttentionMixer:
        prefix = f"blk.{layer}.attn"
        return AttentionMixer(
            query=self[f"{prefix}_q.weight"],
            key=self[f"{prefix}_k.weight"],
            value=self[f"{prefix}_v.weight"],
            query_norm=self[f"{prefix}_q_norm.weight"],
            key_norm=self[f"{prefix}_k_norm.weight"],
            output=self[f"{prefix}_output.weight"],
        )

    def close(self) -> None:
        for buffer in self._shards:
            buffer.free()


class Weights:
    """All tensors of a model. The file's mapping is wrapped; only the conv taps are copied."""

    def __init__(self, device: Device, gguf: GGUF, config: ModelConfig):
        self._tensors = MappedTensors(device, gguf)
        self._conv: dict[int, Tensor] = {}
        self._taps = self._transpose_taps(device, gguf, config)
        self.embedding = self._tensors["token_embd.weight"]
        self.layers = [self._layer(i, kind) for i, kind in enumerate(config.layer_kinds)]
        self.output_norm = self._tensors["output_norm.weight"]
        self.output = self.embedding if config.tied else self._tensors["output.weight"]

    def close(self) -> None:
        self._tensors.close()
        self._taps.free()

    def tensors(self) -> list[Tensor]:
        """Every tensor once, for reports."""
        found: dict[tuple[int, int], Tensor] = {}

        def visit(node: Any) -> None:
            if isinstance(node, Tensor):
                found[node.buffer.id, node.offset_bytes] = node
            else:
                for child in vars(node).values():
                    visit(child)

        for root in (self.embedding, *self.layers, self.output_norm, self.output):
            visit(root)
        return list(found.values())

    def _layer(self, index: int, kind: str) -> Layer:
        def get(name: str) -> Tensor:
            return self._tensors[f"blk.{index}.{name}"]

        mixer: AttentionMixer | DeltaMixer
        if kind == "attention":
            mixer = self._tensors.attention(index)
        else:
            mixer = DeltaMixer(
                qkv=get("attn_qkv.weight"),
                gate=get("attn_gate.weight"),
                alpha=get("ssm_alpha.weight"),
                beta=get("ssm_beta.weight"),
                conv=self._conv[index],
                decay=get("ssm_a"),
                dt_bias=get("ssm_dt.bias"),
                norm=get("ssm_norm.weight"),
                output=get("ssm_out.weight"),
            )
        return Layer(
            mixer_norm=get("attn_norm.weight"),
            mixer=mixer,
            ffn_norm=get("post_attention_norm.weight"),
            ffn_gate=get("ffn_gate.weight"),
            ffn_up=get("ffn_up.weight"),
            ffn_down=get("ffn_down.weight"),
        )

    def _transpose_taps(self, device: Device, gguf: GGUF, config: ModelConfig) -> Buffer:
        """The file has four taps per channel; kernels want a row of channels per tap."""
        layers = [i for i, kind in enumerate(config.layer_kinds) if kind == "delta"]
        shape = (4, config.num_channels)
        layer_bytes = 4 * 4 * config.num_channels
        buffer = device.buffer(layer_bytes * len(layers))
        for position, index in enumerate(layers):
            taps = gguf.array(f"blk.{index}.ssm_conv1d.weight").view(np.float32)
            offset = position * layer_bytes
            buffer.array(np.float32, shape, offset)[:] = taps.reshape(config.num_channels, 4).T
            self._conv[index] = Tensor(buffer, offset, TensorType.F32, shape)
        return buffer
