"""The gated DeltaNet layer in chunks of 64 tokens (the WY form of the delta rule).

Inside a chunk everything is batched products; the unit triangular inverse and the scan over the
chunks are autograd functions, with Triton kernels on the GPU.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_model.layers import EPSILON, ON_GPU, Weight, compiled, linear, rms_norm

if ON_GPU:
    from tools.demo_model import kernels

CHUNK = 64
RESET = -50.0
"""Log decay at the first token of a document: the state of the document before is forgotten."""


class TriangularInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A, (..., chunk, chunk), chunk a power of two >= 16.

    Without Triton: a Neumann product on the diagonal blocks of 16, then merges of block pairs.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        T = kernels.triangular_inverse(A) if ON_GPU else _blockwise_inverse(A)
        ctx.save_for_backward(T)
        return T

    @staticmethod
    def backward(ctx: Any, dT: Tensor) -> Tensor:
        (T,) = ctx.saved_tensors
        transposed = T.transpose(-1, -2)
        return -(transposed @ dT @ transposed)


def _blockwise_inverse(A: Tensor) -> Tensor:
    shape, size = A.shape, A.shape[-1]
    A = A.reshape(-1, size, size)

    def block(width: int, i: int, j: int) -> Tensor:
        return A[:, i * width : (i + 1) * width, j * width : (j + 1) * width]

    width = 16
    power = -torch.stack([block(width, i, i) for i in range(size // width)], 1)
    T = torch.eye(width, dtype=A.dtype, device=A.device) + power
    for _ in range(3):
        power = power @ power
        T = T + T @ power
    while width < size:
        pairs = range(size // (2 * width))
        lower = torch.stack([block(width, 2 * i + 1, 2 * i) for i in pairs], 1)
        first, second = T[:, 0::2], T[:, 1::2]
        top = torch.cat((first, torch.zeros_like(first)), -1)
        T = torch.cat((top, torch.cat((-(second @ lower @ first), second), -1)), -2)
        width *= 2
    return T.reshape(shape)


class ChunkScan(torch.autograd.Function):
    """S_0 = 0, V_i = U_i - W_i S_i, S_{i+1} = decay_i S_i + K_i^T V_i.

    U: (heads, chunks, chunk, value width), W and K: (heads, chunks, chunk, key width), decay:
    (heads, chunks). Returns V and every S_i, (heads, chunks, key width, value width).
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, W: Tensor, K: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        if ON_GPU:
            V, S = kernels.scan_forward(U.contiguous(), W.contiguous(), K, decay)
        else:
            V, S = _scan_forward(U, W, K, decay)
        ctx.save_for_backward(W, K, decay, S, V)
        return V, S

    @staticmethod
    def backward(ctx: Any, dV: Tensor, dS: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        W, K, decay, S, V = ctx.saved_tensors
        if ON_GPU:
            gradients = kernels.scan_backward(
                W.contiguous(), K, decay, dV.contiguous(), dS.contiguous()
            )
        else:
            gradients = _scan_backward(W, K, decay, dV, dS)
        dU, dS_next = gradients
        dW = -(dU @ S.transpose(-1, -2))
        return dU, dW, V @ dS_next.transpose(-1, -2), (S * dS_next).sum((-1, -2))


def _scan_forward(U: Tensor, W: Tensor, K: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.zeros(W.shape[0], W.shape[-1], U.shape[-1], dtype=U.dtype, device=U.device)
    states, values = [], []
    for i in range(W.shape[1]):
        states.append(state)
        values.append(torch.baddbmm(U[:, i], W[:, i], state, alpha=-1))
        kept = state * decay[:, i, None, None]
        state = torch.baddbmm(kept, K[:, i].transpose(1, 2), values[-1])
    return torch.stack(values, 1), torch.stack(states, 1)


def _scan_backward(
    W: Tensor, K: Tensor, decay: Tensor, dV: Tensor, dS: Tensor
) -> tuple[Tensor, Tensor]:
    gradient = torch.zeros_like(dS[:, 0])
    dU: list[Tensor] = []
    dS_next: list[Tensor] = []
    for i in reversed(range(W.shape[1])):
        dS_next.append(gradient)
        dU.append(torch.baddbmm(dV[:, i], K[:, i], gradient))
        kept = gradient * decay[:, i, None, None] + dS[:, i]
        gradient = torch.baddbmm(kept, W[:, i].transpose(1, 2), dU[-1], alpha=-1)
    return torch.stack(dU[::-1], 1), torch.stack(dS_next[::-1], 1)


def l2_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def log_decay(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    return -torch.exp(A_log.float()) * F.softplus(a.float() + dt_bias.float())


def _convolve(u: Tensor, taps: Tensor, positions: Tensor) -> Tensor:
    """Causal depthwise convolution that stays within the documents. taps: (channels, 1, 4)."""
    last = taps.shape[-1] - 1
    y = u * taps[:, 0, last]
    for back in range(1, last + 1):
        earlier = F.pad(u, (0, 0, back, 0))[:, : u.shape[1]]
        inside = (positions >= back)[..., None]
        y = y + torch.where(inside, earlier, 0.0) * taps[:, 0, last - back]
    return F.silu(y)


@compiled
def _chunk_products(
    x: Tensor,
    norm: Tensor,
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    taps: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    width: int,
    positions: Tensor,
) -> tuple[Tensor, ...]:
    """Everything that needs no state. Returns A, beta v, beta k, q, k, q k^T, decay and the gate.

    q, k and their products carry the decay within the chunk; (heads, chunks, chunk, ...).
    """
    batch, time, _ = x.shape
    value_heads, chunks = A_log.shape[0], time // CHUNK
    key_heads = (qkv.shape[0] // width - value_heads) // 2
    groups = value_heads // key_heads
    h = rms_norm(x, 1.0 + norm.float())
    beta = torch.sigmoid(linear(h, b).float())
    g = log_decay(linear(h, a), A_log, dt_bias)
    g = torch.where((positions == 0)[..., None], torch.full_like(g, RESET), g)
    mixed = _convolve(linear(h, qkv).float(), taps, positions)

    def by_head(t: Tensor, heads: int) -> Tensor:
        return t.view(batch, chunks, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)

    q, k, v = mixed.split([key_heads * width, key_heads * width, value_heads * width], -1)
    q, k = l2_norm(by_head(q, key_heads)) * width**-0.5, l2_norm(by_head(k, key_heads))
    v = by_head(v, value_heads).unflatten(1, (key_heads, groups))
    beta = by_head(beta, value_heads).unflatten(1, (key_heads, groups))
    g = by_head(g, value_heads)[..., 0].cumsum(-1).unflatten(1, (key_heads, groups))

    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], -1e30).exp()
    kk = (k @ k.transpose(-1, -2))[:, :, None]
    qk = (q @ k.transpose(-1, -2))[:, :, None]
    from_start = g.exp()[..., None]
    to_end = (g[..., -1:] - g).exp()[..., None]
    k = k[:, :, None]
    products = (
        (beta * kk * decay).tril(-1),
        v * beta,
        k * (beta * from_start),
        q[:, :, None] * from_start,
        k * to_end,
        qk * decay,
        g[..., -1].exp(),
    )
    flat = [t.reshape(batch * value_heads, chunks, *t.shape[4:]).contiguous() for t in products]
    return (*flat, linear(h, z))


@compiled
def _apply_inverse(T: Tensor, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return T @ v, T @ k


def gated_norm(o: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    normed = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + EPSILON) * scale.float()
    return normed * F.silu(z.float())


@compiled
def _output(
    x: Tensor, q: Tensor, S: Tensor, qk: Tensor, V: Tensor, z: Tensor, scale: Tensor, out: Tensor
) -> Tensor:
    batch, time, _ = x.shape
    width = scale.shape[0]
    o = (q @ S + qk @ V).view(batch, -1, time, width).transpose(1, 2)
    o = gated_norm(o, z.view(o.shape), scale)
    return x + linear(o.reshape(batch, time, -1), out).float()


class GatedDeltaNet(nn.Module):
    """Parameters named as in transformers; forward adds the layer to the residual stream."""

    def __init__(
        self, hidden: int, key_heads: int, value_heads: int, width: int, kernel: int, layers: int
    ) -> None:
        super().__init__()
        keys, values = key_heads * width, value_heads * width
        self.in_proj_qkv = Weight(2 * keys + values, hidden, std=hidden**-0.5)
        self.in_proj_z = Weight(values, hidden, std=hidden**-0.5)
        self.in_proj_b = Weight(value_heads, hidden, std=0.02)
        self.in_proj_a = Weight(value_heads, hidden, std=0.02)
        self.conv1d = Weight(2 * keys + values, 1, kernel, std=0.3)
        self.norm = Weight(width, fill=1.0)
        self.out_proj = Weight(hidden, values, std=0.5 * values**-0.5 / layers**0.5)
        self.A_log = nn.Parameter(torch.linspace(1, 16, value_heads).log())
        low, high = math.log(0.001), math.log(0.1)
        dt = torch.exp(torch.rand(value_heads) * (high - low) + low)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: Tensor, input_norm: Tensor, positions: Tensor) -> Tensor:
        """x: (batch, time, hidden), time a multiple of CHUNK; positions: (batch, time)."""
        A, v, k, q, k_to_end, qk, decay, z = _chunk_products(
            x,
            input_norm,
            self.in_proj_qkv.weight,
            self.in_proj_z.weight,
            self.in_proj_b.weight,
            self.in_proj_a.weight,
            self.conv1d.weight,
            self.A_log,
            self.dt_bias,
            self.norm.weight.shape[0],
            positions,
        )
        U, W = _apply_inverse(TriangularInverse.apply(A), v, k)
        V, S = ChunkScan.apply(U, W, k_to_end, decay)
        return _output(x, q, S, qk, V, z, self.norm.weight, self.out_proj.weight)
