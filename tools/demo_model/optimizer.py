"""Muon for the hidden matrices, AdamW for the rest, and the schedule that both follow."""

import math

import torch
from torch import Tensor, nn

from tools.demo_model.layers import compiled

MUON_RATE = 0.02
MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
WARM_UP_STEPS = 150
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def schedule(step: int, progress: float) -> float:
    """Factor of the rate: linear over the first steps, cosine from 1 to 0.01 over the run."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm_up * (0.5 * (1 + math.cos(math.pi * progress)) * 0.99 + 0.01)


def adamw(parameters: list[nn.Parameter], matrices_from: int, rate: float) -> torch.optim.AdamW:
    """AdamW that decays tensors of at least `matrices_from` dimensions."""
    decayed = [p for p in parameters if p.dim() >= matrices_from]
    kept = [p for p in parameters if p.dim() < matrices_from]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


@compiled
def _orthogonalise(gradients: Tensor) -> Tensor:
    """Newton-Schulz iterations in bfloat16 on (count, rows, columns)."""
    a, b, c = NEWTON_SCHULZ
    x = gradients.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = a * x + (b * s + c * s @ s) @ x
    return x.transpose(-1, -2) if tall else x


class Muon:
    """Momentum, made orthogonal; matrices of one shape are updated together."""

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        self.groups: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            self.groups.setdefault(matrix.shape, []).append(matrix)
        self.momenta = {
            shape: torch.zeros(len(group), *shape, device=group[0].device)
            for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradients = torch.stack([p.grad for p in group if p.grad is not None])
            momentum = self.momenta[shape]
            momentum.mul_(MOMENTUM).add_(gradients, alpha=1 - MOMENTUM)
            updates = _orthogonalise(gradients.lerp(momentum, MOMENTUM)).float()
            scale = rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, update in zip(group, updates, strict=True):
                matrix.mul_(1 - rate * WEIGHT_DECAY).add_(update, alpha=-scale)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The hidden matrices, which Muon trains, and the other parameters of the target."""
    others = ("embed", "in_proj_a", "in_proj_b")
    hidden, rest = [], []
    for name, parameter in model.named_parameters():
        is_hidden = parameter.dim() == 2 and not any(part in name for part in others)
        (hidden if is_hidden else rest).append(parameter)
    return hidden, rest
