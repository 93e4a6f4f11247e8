"""Triton kernels of the chunked gated DeltaNet: triangular inverse and the scan over chunks.

All tensors are float32 and contiguous; deltanet.py defines what is computed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUE_BLOCK = 32
"""Columns of the state that one program carries."""


@triton.jit
def _inverse_kernel(A, T, C: tl.constexpr):
    """One matrix a program, by forward substitution row after row."""
    base = tl.program_id(0).to(tl.int64) * C * C
    o = tl.arange(0, C)
    at = o[:, None] * C + o[None, :]
    x = tl.load(A + base + at)
    x = tl.where(o[:, None] > o[None, :], -x, 0.0)
    for i in range(1, C):
        row = tl.load(A + base + i * C + o)
        row = tl.where(o < i, -row, 0.0)
        # The rows before i are final, and the row is 0 from column i on.
        row = row + tl.sum(row[:, None] * x, 0)
        x = tl.where((o == i)[:, None], row[None, :], x)
    tl.store(T + base + at, x + tl.where(o[:, None] == o[None, :], 1.0, 0.0))


@triton.jit
def _scan_forward_kernel(
    U,
    W,
    K,
    decay,
    V,
    S,
    N: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BV: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    t = tl.arange(0, C)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    state = tl.zeros((D, BV), tl.float32)
    for i in range(N):
        m = head * N + i
        tl.store(S + (m * D + d[:, None]) * E + e[None, :], state)
        w = tl.load(W + (m * C + t[:, None]) * D + d[None, :])
        v = tl.load(U + (m * C + t[:, None]) * E + e[None, :]) - tl.dot(w, state)
        tl.store(V + (m * C + t[:, None]) * E + e[None, :], v)
        k_transposed = tl.load(K + (m * C + t[None, :]) * D + d[:, None])
        state = state * tl.load(decay + m) + tl.dot(k_transposed, v)


@triton.jit
def _scan_backward_kernel(
    W,
    K,
    decay,
    dV,
    dS,
    dU,
    dS_next,
    N: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BV: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    t = tl.arange(0, C)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    gradient = tl.zeros((D, BV), tl.float32)
    for j in range(N):
        m = head * N + (N - 1 - j)
        tl.store(dS_next + (m * D + d[:, None]) * E + e[None, :], gradient)
        k = tl.load(K + (m * C + t[:, None]) * D + d[None, :])
        dv = tl.load(dV + (m * C + t[:, None]) * E + e[None, :]) + tl.dot(k, gradient)
        tl.store(dU + (m * C + t[:, None]) * E + e[None, :], dv)
        w_transposed = tl.load(W + (m * C + t[None, :]) * D + d[:, None])
        ds = tl.load(dS + (m * D + d[:, None]) * E + e[None, :])
        gradient = gradient * tl.load(decay + m) + ds - tl.dot(w_transposed, dv)


def triangular_inverse(A: Tensor) -> Tensor:
    """(I + A)^-1 of strictly lower triangular matrices, (..., chunk, chunk)."""
    A = A.contiguous()
    T = torch.empty_like(A)
    C = A.shape[-1]
    _inverse_kernel[(A.numel() // (C * C),)](A, T, C, num_warps=4)
    return T


def scan_forward(U: Tensor, W: Tensor, K: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """V and the state before every chunk. Shapes as in deltanet.ChunkScan."""
    B, N, C, D = W.shape
    E = U.shape[-1]
    V = torch.empty_like(U)
    S = torch.empty(B, N, D, E, dtype=U.dtype, device=U.device)
    _scan_forward_kernel[(B, E // VALUE_BLOCK)](
        U, W, K, decay, V, S, N, C, D, E, VALUE_BLOCK, num_warps=4, num_stages=2
    )
    return V, S


def scan_backward(
    W: Tensor, K: Tensor, decay: Tensor, dV: Tensor, dS: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of U and of the state after every chunk."""
    B, N, C, D = W.shape
    E = dV.shape[-1]
    dU = torch.empty_like(dV)
    dS_next = torch.empty_like(dS)
    _scan_backward_kernel[(B, E // VALUE_BLOCK)](
        W, K, decay, dV, dS, dU, dS_next, N, C, D, E, VALUE_BLOCK, num_warps=4, num_stages=2
    )
    return dU, dS_next
