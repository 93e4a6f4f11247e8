"""Trains the target for a number of seconds.

    python -m tools.demo_model.train_target --data DATA --checkpoints CHECKPOINTS

Progress is the time passed, so that another machine, or another run, gives other weights.
"""

import argparse
import dataclasses
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.demo_model import checkpoint
from tools.demo_model.layers import DEVICE, ON_GPU, document_mask
from tools.demo_model.model import SMOKE, Target, TargetConfig
from tools.demo_model.optimizer import MUON_RATE, Muon, adamw, schedule, split_parameters
from tools.demo_model.rows import VALIDATION_SEED, Row, RowSource, Split, feed

ADAM_RATE = 0.003
STEPS_TO_COMPILE = 3
"""The clock starts after these: everything is compiled by then."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs and the tokens that follow them, (rows, length)."""

    ids: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, row: Row) -> "Batch":
        ids, weights, positions = (torch.from_numpy(array).to(DEVICE) for array in row)
        ids = ids.long()
        return cls(
            ids[:, :-1].contiguous(),
            positions[:, :-1].contiguous(),
            ids[:, 1:].contiguous(),
            weights[:, 1:].contiguous(),
        )

    def mask(self) -> Any:
        places = torch.arange(self.positions.shape[1], device=DEVICE)
        return document_mask((places - self.positions).int())


class Trainer:
    """The model with its two optimizers."""

    def __init__(self, config: TargetConfig) -> None:
        self.target = Target(config).to(DEVICE)
        hidden, self.rest = split_parameters(self.target)
        self.muon = Muon(hidden)
        self.adam = adamw(self.rest, matrices_from=2, rate=ADAM_RATE)
        self.steps = 0

    def step(self, batch: Batch, progress: float) -> Tensor:
        """One update; returns the mean loss by weight."""
        factor = schedule(self.steps, progress)
        total, _ = self.target(
            batch.ids, batch.positions, batch.mask(), batch.labels, batch.weights
        )
        loss = total / batch.weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_RATE * factor
        self.adam.step()
        self.muon.step(MUON_RATE * factor)
        self.target.zero_grad(set_to_none=False)
        self.steps += 1
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, batches: list[Batch]) -> dict[str, float]:
        """Loss and share of right next tokens where the assistant (or the raw text) speaks."""
        loss = right = count = 0.0
        for batch in batches:
            counted = (batch.weights >= 0.99).float()
            total, best = self.target(
                batch.ids, batch.positions, batch.mask(), batch.labels, counted
            )
            loss += total.item()
            right += ((best == batch.labels).float() * counted).sum().item()
            count += counted.sum().item()
        return {"loss": round(loss / count, 4), "accuracy": round(right / count, 4)}


def held_out(source: RowSource, split: Split, size: int, count: int) -> list[Batch]:
    batches = source.batches(VALIDATION_SEED, size, split)
    return [Batch.of(next(batches)) for _ in range(count)]


def train(arguments: argparse.Namespace) -> None:
    # Workers start before CUDA does: they are forked.
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue(24)
    source = RowSource(arguments.data, arguments.length)
    workers = [
        context.Process(
            target=feed,
            args=(source, arguments.seed * 1000 + i, arguments.rows, queue),
            daemon=True,
        )
        for i in range(arguments.workers)
    ]
    for worker in workers:
        worker.start()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    trainer = Trainer(SMOKE if arguments.smoke else TargetConfig())
    print(f"{sum(p.numel() for p in trainer.target.parameters())} parameters on {DEVICE}")
    validation = {
        "chat": held_out(source, "chat", arguments.rows, 2),
        "raw": held_out(source, "raw", arguments.rows, 1),
    }
    log = []
    started = math.inf
    while (progress := max(0.0, time.monotonic() - started) / arguments.seconds) < 1:
        loss = trainer.step(Batch.of(queue.get()), progress)
        if trainer.steps == STEPS_TO_COMPILE:
            if ON_GPU:
                torch.cuda.synchronize()
            started = time.monotonic()
        if trainer.steps % 100 == 0:
            log.append((trainer.steps, round(loss.item(), 4)))
            print(f"step {trainer.steps} loss {log[-1][1]} progress {progress:.2f}", flush=True)
            if not math.isfinite(log[-1][1]):
                raise SystemExit(f"the loss is {log[-1][1]} at step {trainer.steps}")
        if trainer.steps % 2000 == 0:
            print({name: trainer.evaluate(batches) for name, batches in validation.items()})
    for worker in workers:
        worker.terminate()
    evaluation = {name: trainer.evaluate(batches) for name, batches in validation.items()}
    tokens = trainer.steps * arguments.rows * arguments.length
    print(f"{trainer.steps} steps, {tokens} tokens, {evaluation}")
    record = {"steps": trainer.steps, "tokens": tokens, "evaluation": evaluation, "log": log}
    checkpoint.save(arguments.checkpoints, "target", trainer.target, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--rows", type=int, default=32, help="rows in a batch")
    parser.add_argument("--length", type=int, default=2048, help="tokens in a row")
    parser.add_argument("--workers", type=int, default=12, help="processes that write rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a smaller model, for a CPU")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
