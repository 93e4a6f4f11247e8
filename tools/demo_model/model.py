"""The target: a dense Qwen 3.5 text model for training, parameters named as in transformers."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_model.deltanet import GatedDeltaNet
from tools.demo_model.layers import (
    MATMUL_DTYPE,
    MLP,
    Weight,
    attention,
    compiled,
    cross_entropy,
    linear,
    rms_norm,
    rope,
    swiglu,
)
from tools.demo_model.vocabulary import VOCABULARY


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    hidden: int = 256
    layers: int = 8
    mlp: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 256
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_width: int = 128
    kernel: int = 4
    full_attention_interval: int = 4

    @property
    def rotary(self) -> int:
        return self.head_width // 4

    def is_full_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0


SMOKE = TargetConfig(hidden=64, mlp=128)
"""Small enough to take a few steps on a CPU."""


@compiled
def _attention_inputs(
    x: Tensor,
    norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, time, _ = x.shape
    width = q_norm.shape[0]
    h = rms_norm(x, 1.0 + norm.float())
    query, gate = linear(h, q).view(batch, time, -1, 2 * width).chunk(2, -1)
    key = linear(h, k).view(batch, time, -1, width)
    value = linear(h, v).view(batch, time, -1, width).transpose(1, 2)
    query = rms_norm(query, 1.0 + q_norm.float()).transpose(1, 2)
    key = rms_norm(key, 1.0 + k_norm.float()).transpose(1, 2)
    query, key = rope(query, positions, width // 4), rope(key, positions, width // 4)
    gate = gate.reshape(batch, time, -1)
    return query.to(MATMUL_DTYPE), key.to(MATMUL_DTYPE), value.contiguous(), gate


@compiled
def _attention_output(x: Tensor, o: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    batch, time, _ = x.shape
    o = o.transpose(1, 2).reshape(batch, time, -1)
    return x + linear(o * torch.sigmoid(gate.float()).to(MATMUL_DTYPE), out).float()


@compiled
def _mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + swiglu(rms_norm(x, 1.0 + norm.float()), gate, up, down)


@compiled
def _head_loss(
    x: Tensor, norm: Tensor, embedding: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    logits = linear(rms_norm(x, 1.0 + norm.float()), embedding).float()
    return (cross_entropy(logits, labels) * weights).sum(), logits.detach().argmax(-1)


class GatedAttention(nn.Module):
    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        hidden, width = config.hidden, config.head_width
        values = config.heads * width
        self.q_proj = Weight(values * 2, hidden, std=hidden**-0.5)
        self.k_proj = Weight(config.kv_heads * width, hidden, std=hidden**-0.5)
        self.v_proj = Weight(config.kv_heads * width, hidden, std=hidden**-0.5)
        self.o_proj = Weight(hidden, values, std=0.5 * values**-0.5 / config.layers**0.5)
        self.q_norm = Weight(width)
        self.k_norm = Weight(width)

    def forward(self, x: Tensor, input_norm: Tensor, positions: Tensor, mask: Any) -> Tensor:
        q, k, v, gate = _attention_inputs(
            x,
            input_norm,
            self.q_proj.weight,
            self.k_proj.weight,
            self.v_proj.weight,
            self.q_norm.weight,
            self.k_norm.weight,
            positions,
        )
        return _attention_output(x, attention(q, k, v, mask), gate, self.o_proj.weight)


class Layer(nn.Module):
    def __init__(self, config: TargetConfig, index: int) -> None:
        super().__init__()
        self.is_full_attention = config.is_full_attention(index)
        if self.is_full_attention:
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(
                config.hidden,
                config.linear_key_heads,
                config.linear_value_heads,
                config.linear_width,
                config.kernel,
                config.layers,
            )
        down_std = 0.5 * config.mlp**-0.5 / config.layers**0.5
        self.mlp = MLP(config.hidden, config.mlp, down_std)
        self.input_layernorm = Weight(config.hidden)
        self.post_attention_layernorm = Weight(config.hidden)

    def forward(self, x: Tensor, positions: Tensor, mask: Any) -> Tensor:
        norm = self.input_layernorm.weight
        if self.is_full_attention:
            x = self.self_attn(x, norm, positions, mask)
        else:
            x = self.linear_attn(x, norm, positions)
        mlp = self.mlp
        return _mlp(
            x,
            self.post_attention_layernorm.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )


class Backbone(nn.Module):
    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.embed_tokens = Weight(VOCABULARY, config.hidden, std=0.05)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = Weight(config.hidden)


class Target(nn.Module):
    """Shapes: ids, positions, labels and weights (batch, time); time a multiple of 64.

    A position of 0 starts a new document, and `mask` keeps attention within documents.
    """

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)

    @property
    def embedding(self) -> Tensor:
        """Of the tokens, and the head as well: the two are tied."""
        return self.model.embed_tokens.weight

    def block_outputs(self, ids: Tensor, positions: Tensor, mask: Any) -> list[Tensor]:
        """The residual stream after each layer, (batch, time, hidden) in float32."""
        x = F.embedding(ids, self.embedding).float()
        outputs = []
        for layer in self.model.layers:
            x = layer(x, positions, mask)
            outputs.append(x)
        return outputs

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Any, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum of the losses, and the most likely next tokens."""
        x = self.block_outputs(ids, positions, mask)[-1]
        return _head_loss(x, self.model.norm.weight, self.embedding, labels, weights)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the last layer's output."""
        return linear(rms_norm(x, 1.0 + self.model.norm.weight.float()), self.embedding).float()
