"""What target and drafter share: compiled leaves, linear maps, rotary embedding, attention."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
MATMUL_DTYPE = torch.bfloat16 if ON_GPU else torch.float32
"""Type of the factors of a product; the residual stream and all states are float32."""
EPSILON = 1e-6
ROPE_THETA = 1e7

MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""Of batch, head, query and key index (or tensors of them): whether the query sees the key."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for fixed shapes on the GPU, as it is on the CPU."""
    return torch.compile(function, dynamic=False) if ON_GPU else function


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.to(MATMUL_DTYPE), weight.to(MATMUL_DTYPE))


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """x over its root mean square, times `scale`, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * scale.float()


def rope(x: Tensor, positions: Tensor, rotary: int) -> Tensor:
    """Rotates the first `rotary` components. x: (batch, heads, time, width)."""
    exponents = -torch.arange(0, rotary, 2, device=x.device, dtype=torch.float32) / rotary
    angles = positions.float()[..., None] * ROPE_THETA**exponents
    angles = torch.cat((angles, angles), -1)[:, None]
    turned, rest = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    crossed = torch.cat((-second, first), -1)
    return torch.cat((turned * angles.cos() + crossed * angles.sin(), rest), -1)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return linear(F.silu(linear(x, gate)) * linear(x, up), down).float()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of every label, (batch, time)."""
    return torch.logsumexp(logits, -1) - logits.gather(-1, labels[..., None])[..., 0]


@functools.cache
def _flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return compiled(flex_attention)


@functools.cache
def _create_block_mask() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)


def build_mask(visible: MaskFunction, batch: int, queries: int, keys: int) -> Any:
    """A flex BlockMask on the GPU, a bool tensor (batch, 1, queries, keys) on the CPU."""
    if ON_GPU:
        return _create_block_mask()(visible, batch, None, queries, keys, device="cuda")
    rows = torch.arange(batch)[:, None, None]
    dense = visible(rows, 0, torch.arange(queries)[:, None], torch.arange(keys))
    return dense.expand(batch, queries, keys)[:, None]


def document_mask(starts: Tensor) -> Any:
    """Causal within documents. starts: (batch, time), the row index where the document starts."""
    batch, length = starts.shape

    def visible(b: Any, h: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (key >= starts[b, query])

    return build_mask(visible, batch, length, length)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Grouped-query attention under a mask of build_mask. q, k, v: (batch, heads, time, width)."""
    if torch.is_tensor(mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return _flex_attention()(q, k, v, block_mask=mask, enable_gqa=True)


class Weight(nn.Module):
    """A parameter named `weight`, normal with deviation `std` or filled with a constant."""

    def __init__(self, *shape: int, std: float | None = None, fill: float = 0.0) -> None:
        super().__init__()
        value = torch.full(shape, fill) if std is None else torch.randn(*shape) * std
        self.weight = nn.Parameter(value)


class MLP(nn.Module):
    """The weights of a gated MLP; swiglu uses them."""

    def __init__(self, hidden: int, width: int, down_std: float) -> None:
        super().__init__()
        self.gate_proj = Weight(width, hidden, std=hidden**-0.5)
        self.up_proj = Weight(width, hidden, std=hidden**-0.5)
        self.down_proj = Weight(hidden, width, std=down_std)
