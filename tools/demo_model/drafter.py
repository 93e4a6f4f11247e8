"""The DFlash drafter: predicts a block of tokens at once from what the target thought before it.

A block starts at an anchor, whose token is known; the other places hold the mask id. The context
of a block is every token before its anchor, seen through the residual stream after some layers of
the target (the taps). Parameters are named as in the public DFlashDraftModel.
"""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_model.layers import (
    MATMUL_DTYPE,
    MLP,
    MaskFunction,
    Weight,
    attention,
    build_mask,
    compiled,
    cross_entropy,
    linear,
    rms_norm,
    rope,
    swiglu,
)
from tools.demo_model.vocabulary import MASK

BLOCK = 16
TAPS = (1, 3, 5)
"""Layers of the target, from 0, whose outputs the drafter sees."""
WINDOW = 512
LAYER_TYPES = ("sliding_attention", "full_attention")
LOSS_DECAY = 7.0
"""The loss of place j has the weight exp(-(j - 1) / 7): early places decide what is accepted."""


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    hidden: int
    mlp: int
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 128


class Blocks(NamedTuple):
    """Blocks at anchors; anchors: (batch, blocks), the others (batch, blocks x 16, ...)."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    positions: Tensor
    valid: Tensor
    """(batch, blocks, 16): places to predict that lie within the document."""


def blocks_at(
    anchors: Tensor, ids: Tensor, positions: Tensor, ends: Tensor, embedding: Tensor
) -> Blocks:
    """Blocks of packed rows; ends: the row index just past the document; anchor -1: no block."""
    batch, count = anchors.shape
    anchor = anchors.clamp(min=0)
    offset = torch.arange(BLOCK, device=ids.device)
    tokens = torch.full((batch, count, BLOCK), MASK, dtype=torch.long, device=ids.device)
    tokens[:, :, 0] = ids.gather(1, anchor)
    place = anchor[..., None] + offset
    valid = place < ends.gather(1, anchor)[..., None]
    valid = valid & (anchors >= 0)[..., None] & (offset > 0)
    inside = place.clamp(max=ids.shape[1] - 1)
    labels = ids.gather(1, inside.view(batch, -1))
    weights = torch.exp(-(offset - 1.0).clamp(min=0) / LOSS_DECAY) * valid
    block_positions = positions.gather(1, anchor)[..., None] + offset
    return Blocks(
        F.embedding(tokens.flatten(1), embedding).float(),
        labels,
        weights.flatten(1),
        block_positions.flatten(1),
        valid,
    )


def block_masks(anchors: Tensor, starts: Tensor) -> list[Any]:
    """One mask a layer over keys [context, blocks]; starts: as for document_mask.

    A full layer sees the context and its whole block; a sliding layer sees the last WINDOW places
    and is causal within the block.
    """
    batch, count = anchors.shape
    length = starts.shape[1]
    anchors = anchors.clamp(min=0).int()

    def full(b: Any, h: Any, query: Any, key: Any) -> Any:
        anchor = anchors[b, query // BLOCK]
        context = torch.clamp(key, max=length - 1)
        before = (key < length) & (context < anchor) & (context >= starts[b, anchor])
        same = (key >= length) & ((key - length) // BLOCK == query // BLOCK)
        return before | same

    def sliding(b: Any, h: Any, query: Any, key: Any) -> Any:
        anchor = anchors[b, query // BLOCK]
        context = torch.clamp(key, max=length - 1)
        near = anchor + query % BLOCK - context < WINDOW
        before = (key < length) & (context < anchor) & (context >= starts[b, anchor]) & near
        same = (key >= length) & ((key - length) // BLOCK == query // BLOCK)
        return before | (same & ((key - length) % BLOCK <= query % BLOCK))

    visible: dict[str, MaskFunction] = {"full_attention": full, "sliding_attention": sliding}
    queries = count * BLOCK
    return [build_mask(visible[kind], batch, queries, length + queries) for kind in LAYER_TYPES]


@compiled
def _fuse(features: Tensor, fc: Tensor, norm: Tensor) -> Tensor:
    return rms_norm(linear(features, fc), norm)


@compiled
def _attention_inputs(
    x: Tensor,
    context: Tensor,
    norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    positions: Tensor,
    context_positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, queries, _ = x.shape
    keys, width = context.shape[1] + queries, q_norm.shape[0]
    h = rms_norm(x, norm)
    seen = torch.cat((context, h), 1)
    query = rms_norm(linear(h, q).view(batch, queries, -1, width), q_norm).transpose(1, 2)
    key = rms_norm(linear(seen, k).view(batch, keys, -1, width), k_norm).transpose(1, 2)
    value = linear(seen, v).view(batch, keys, -1, width).transpose(1, 2)
    query = rope(query, positions, width)
    key = rope(key, torch.cat((context_positions, positions), 1), width)
    return query.to(MATMUL_DTYPE), key.to(MATMUL_DTYPE), value.contiguous()


@compiled
def _layer_output(
    x: Tensor, o: Tensor, out: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    batch, queries, _ = x.shape
    x = x + linear(o.transpose(1, 2).reshape(batch, queries, -1), out).float()
    return x + swiglu(rms_norm(x, norm), gate, up, down)


@compiled
def _head_loss(
    x: Tensor, norm: Tensor, embedding: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    logits = linear(rms_norm(x, norm), embedding).float()
    return (cross_entropy(logits, labels) * weights).sum(), logits.detach().argmax(-1)


class DrafterAttention(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, width = config.hidden, config.head_width
        values = config.heads * width
        self.q_proj = Weight(values, hidden, std=hidden**-0.5)
        self.k_proj = Weight(config.kv_heads * width, hidden, std=hidden**-0.5)
        self.v_proj = Weight(config.kv_heads * width, hidden, std=hidden**-0.5)
        self.o_proj = Weight(hidden, values, std=0.3 * values**-0.5)
        self.q_norm = Weight(width, fill=1.0)
        self.k_norm = Weight(width, fill=1.0)


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig, target_layers: int) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config)
        down_std = 0.5 * config.mlp**-0.5 / target_layers**0.5
        self.mlp = MLP(config.hidden, config.mlp, down_std)
        self.input_layernorm = Weight(config.hidden, fill=1.0)
        self.post_attention_layernorm = Weight(config.hidden, fill=1.0)

    def forward(
        self, x: Tensor, context: Tensor, positions: Tensor, context_positions: Tensor, mask: Any
    ) -> Tensor:
        attn, mlp = self.self_attn, self.mlp
        q, k, v = _attention_inputs(
            x,
            context,
            self.input_layernorm.weight,
            attn.q_proj.weight,
            attn.k_proj.weight,
            attn.v_proj.weight,
            attn.q_norm.weight,
            attn.k_norm.weight,
            positions,
            context_positions,
        )
        return _layer_output(
            x,
            attention(q, k, v, mask),
            attn.o_proj.weight,
            self.post_attention_layernorm.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )


class Drafter(nn.Module):
    """Embedding and head are the target's."""

    def __init__(self, config: DrafterConfig, target_layers: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DrafterLayer(config, target_layers) for _ in LAYER_TYPES)
        self.norm = Weight(config.hidden, fill=1.0)
        self.hidden_norm = Weight(config.hidden, fill=1.0)
        width = config.hidden * len(TAPS)
        self.fc = Weight(config.hidden, width, std=width**-0.5)

    def block_outputs(
        self, blocks: Blocks, features: Tensor, context_positions: Tensor, masks: list[Any]
    ) -> Tensor:
        """features: (batch, time, taps x hidden). Returns (batch, blocks x 16, hidden)."""
        context = _fuse(features, self.fc.weight, self.hidden_norm.weight)
        x = blocks.inputs
        for layer, mask in zip(self.layers, masks, strict=True):
            x = layer(x, context, blocks.positions, context_positions, mask)
        return x

    def forward(
        self,
        blocks: Blocks,
        features: Tensor,
        context_positions: Tensor,
        masks: list[Any],
        embedding: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum of the losses, and the drafted tokens, (batch, blocks x 16)."""
        x = self.block_outputs(blocks, features, context_positions, masks)
        return _head_loss(x, self.norm.weight, embedding, blocks.labels, blocks.weights)


def accepted(best: Tensor, blocks: Blocks) -> Tensor:
    """How many drafted tokens are right before the first wrong one, (batch, blocks)."""
    right = (best == blocks.labels).view(blocks.valid.shape) & blocks.valid
    return right[:, :, 1:].long().cumprod(-1).sum(-1)
