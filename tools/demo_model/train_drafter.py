"""Trains the drafter on the frozen target for a number of seconds.

    python -m tools.demo_model.train_drafter --data DATA --checkpoints CHECKPOINTS

Every batch holds rows of the target's own greedy answers, made anew during the training, and rows
of the corpus, which give longer contexts.
"""

import argparse
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.demo_model import checkpoint
from tools.demo_model.acceptance import HeldOut, target_features, tokens_per_pass
from tools.demo_model.answers import (
    Answer,
    PackedRows,
    answer,
    corpus_rows,
    feed_prompts,
    pack,
    to_device,
)
from tools.demo_model.decode import GreedyDecoder
from tools.demo_model.drafter import Drafter, DrafterConfig, accepted, block_masks, blocks_at
from tools.demo_model.layers import DEVICE, ON_GPU
from tools.demo_model.model import Target
from tools.demo_model.optimizer import adamw, schedule
from tools.demo_model.rows import RowSource, feed

RATE = 2e-3
STEPS_TO_COMPILE = 3
KEPT_SETS = 12
"""Sets of answers that are kept; half of the batches draw from the newest."""
TIME_BETWEEN_SETS = 2.2
"""In units of the time that a set takes."""
ANSWERS_OF_ROW = 16
"""Answers drawn for each row; those that do not fit are dropped."""
CORPUS_RAW_SHARE = 0.1


class DrafterTrainer:
    def __init__(self, target: Target, blocks: int) -> None:
        self.target, self.blocks = target, blocks
        config = DrafterConfig(target.config.hidden, target.config.mlp)
        self.drafter = Drafter(config, target.config.layers).to(DEVICE)
        self.optimizer = adamw(list(self.drafter.parameters()), matrices_from=2, rate=RATE)
        self.steps = 0

    def anchors(self, candidates: Tensor) -> Tensor:
        """Up to `blocks` of the candidates of every row, at random, in order; -1 for none."""
        scores, places = (torch.rand(candidates.shape, device=DEVICE) * candidates).topk(
            self.blocks
        )
        return torch.where(scores > 0, places, -1).sort(1).values

    def step(self, packed: PackedRows, progress: float) -> tuple[float, float]:
        """One update; returns the mean loss by weight and the mean tokens of a verify pass."""
        ids, positions, ends, starts = to_device(packed)
        embedding = self.target.embedding
        features = target_features(self.target, ids, positions, starts)
        anchors = self.anchors(torch.from_numpy(packed.anchors).to(DEVICE))
        blocks = blocks_at(anchors, ids, positions, ends, embedding)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * schedule(self.steps, progress)
        masks = block_masks(anchors, starts)
        total, best = self.drafter(blocks, features, positions, masks, embedding)
        loss = total / blocks.weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.steps += 1
        tokens = 1 + accepted(best, blocks)[anchors >= 0].float().mean()
        return loss.item(), tokens.item()


class AnswerPool:
    """Sets of the target's answers to new prompts, renewed as the training goes on."""

    def __init__(self, decoder: GreedyDecoder, prompts: Any) -> None:
        self.decoder, self.prompts = decoder, prompts
        self.sets: list[list[Answer]] = []
        self.rng = np.random.default_rng(0)
        self.due = 0.0

    def renew(self) -> None:
        """Adds a set if it is time to."""
        started = time.monotonic()
        if self.sets and started < self.due:
            return
        prompts: list[list[int]] = []
        while len(prompts) < self.decoder.batch:
            prompts += self.prompts.get()
        answers = answer(self.decoder, prompts[: self.decoder.batch])
        self.sets = [*self.sets, [a for a in answers if a is not None]][-KEPT_SETS:]
        finished = time.monotonic()
        self.due = finished + TIME_BETWEEN_SETS * (finished - started)

    def rows(self, count: int, length: int) -> PackedRows:
        chosen = self.sets[-1]
        if self.rng.random() < 0.5:
            chosen = self.sets[self.rng.integers(len(self.sets))]
        drawn = self.rng.integers(0, len(chosen), count * ANSWERS_OF_ROW)
        return pack([chosen[i] for i in drawn], count, length)[0]


def train(arguments: argparse.Namespace) -> None:
    # Workers start before CUDA does: they are forked.
    context = multiprocessing.get_context("fork")
    prompts: Any = context.Queue(16)
    corpus: Any = context.Queue(16)
    source = RowSource(arguments.data, arguments.length, CORPUS_RAW_SHARE)
    workers = []
    for i in range(arguments.workers):
        prompt_job = (source, 555 + i, prompts)
        corpus_job = (source, 777 + i, arguments.corpus_rows, corpus)
        workers.append(context.Process(target=feed_prompts, args=prompt_job, daemon=True))
        workers.append(context.Process(target=feed, args=corpus_job, daemon=True))
    for worker in workers:
        worker.start()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    target = checkpoint.load_target(arguments.checkpoints)
    trainer = DrafterTrainer(target, arguments.blocks)
    decoder = GreedyDecoder(target, arguments.answers, arguments.answer_length)
    held_out = HeldOut.draw(source, decoder)
    pool = AnswerPool(decoder, prompts)
    rows = arguments.answer_rows + arguments.corpus_rows
    log = []
    started = math.inf
    while (progress := max(0.0, time.monotonic() - started) / arguments.seconds) < 1:
        pool.renew()
        answers = pool.rows(arguments.answer_rows, arguments.length)
        packed = answers.joined(corpus_rows(corpus.get(), arguments.length))
        loss, tokens = trainer.step(packed, progress)
        if trainer.steps == STEPS_TO_COMPILE:
            if ON_GPU:
                torch.cuda.synchronize()
            started = time.monotonic()
        if trainer.steps % 200 == 0:
            log.append((trainer.steps, round(loss, 4)))
            print(f"step {trainer.steps} loss {loss:.4f} tokens a pass {tokens:.2f}", flush=True)
            if not math.isfinite(loss):
                raise SystemExit(f"the loss is {loss} at step {trainer.steps}")
    for worker in workers:
        worker.terminate()
    shape = (rows, arguments.blocks, arguments.length)
    means = tokens_per_pass(target, trainer.drafter, held_out, *shape)
    print(f"{trainer.steps} steps, tokens a pass by block size: {means}")
    record = {"steps": trainer.steps, "tokens_per_pass": means, "log": log}
    checkpoint.save(arguments.checkpoints, "drafter", trainer.drafter, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=310)
    parser.add_argument("--answer-rows", type=int, default=24, help="rows of answers in a batch")
    parser.add_argument("--corpus-rows", type=int, default=8, help="rows of the corpus in a batch")
    parser.add_argument("--length", type=int, default=2048, help="tokens in a row")
    parser.add_argument("--blocks", type=int, default=128, help="blocks drawn from a row")
    parser.add_argument("--answers", type=int, default=3072, help="answers in a set")
    parser.add_argument("--answer-length", type=int, default=512, help="tokens, prompt included")
    parser.add_argument("--workers", type=int, default=4, help="processes of each of two kinds")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
