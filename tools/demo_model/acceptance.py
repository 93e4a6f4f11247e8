"""Counts how many tokens a verify pass of greedy speculative decoding yields, by kind of task."""

import collections
import random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tools.demo_model.answers import (
    Answer,
    PackedRows,
    answer,
    mixed_prompt,
    pack,
    raw_prompt,
    task_prompt,
    to_device,
    tool_prompt,
)
from tools.demo_model.decode import GreedyDecoder
from tools.demo_model.drafter import TAPS, Drafter, accepted, block_masks, blocks_at
from tools.demo_model.layers import DEVICE, document_mask
from tools.demo_model.model import Target
from tools.demo_model.rows import VALIDATION_SEED, RowSource
from tools.demo_model.tasks import code, facts, lists, numbers, reading, story, structured, words

KINDS = {
    "define": words.define,
    "arithmetic": numbers.add,
    "sort": lists.sort,
    "repeat": reading.repeat,
    "facts": facts.fact,
    "json": structured.json_text,
    "code": code.code,
    "story": story.story,
    "long list": reading.long_list,
}
PROMPTS_OF_KIND = 64
MIXED_PROMPTS = 256
BLOCK_SIZES = (16, 8, 4)
"""Below 16 these are the same predictions cut short, not those of a smaller block."""


@torch.no_grad()
def target_features(target: Target, ids: Tensor, positions: Tensor, starts: Tensor) -> Tensor:
    """(batch, time, taps x hidden) in bfloat16."""
    outputs = target.block_outputs(ids, positions, document_mask(starts))
    return torch.cat([outputs[tap] for tap in TAPS], -1).to(torch.bfloat16)


def _held_out_prompts(source: RowSource) -> list[tuple[str, list[int]]]:
    rng = random.Random(VALIDATION_SEED + 77)
    several = range(PROMPTS_OF_KIND)
    prompts = [
        (kind, task_prompt(source, rng, make)) for kind, make in KINDS.items() for _ in several
    ]
    prompts += [("tools", tool_prompt(source, rng)) for _ in several]
    prompts += [("raw text", raw_prompt(source, rng, held_out=True)) for _ in several]
    mixed = [mixed_prompt(source, rng, held_out=True) for _ in range(MIXED_PROMPTS)]
    return prompts + [("mixed chat", prompt) for prompt in mixed]


class HeldOut(NamedTuple):
    """Answers of the target to held-out prompts, with their kinds."""

    kinds: list[str]
    answers: list[Answer]

    @classmethod
    def draw(cls, source: RowSource, decoder: GreedyDecoder) -> "HeldOut":
        """As many prompts as the decoder takes at once; a larger decoder repeats the first."""
        drawn = _held_out_prompts(source)
        random.Random(0).shuffle(drawn)
        drawn = drawn[: decoder.batch]
        padding = [drawn[0][1]] * (decoder.batch - len(drawn))
        answers = answer(decoder, [prompt for _, prompt in drawn] + padding)
        kept = [(kind, a) for (kind, _), a in zip(drawn, answers, strict=False) if a is not None]
        return cls([kind for kind, _ in kept], [a for _, a in kept])


def accepted_at_anchors(
    target: Target, drafter: Drafter, packed: PackedRows, rows: int, blocks: int
) -> np.ndarray:
    """Accepted tokens of the block at every anchor; `rows` x `blocks` blocks at a time."""
    result = np.zeros_like(packed.ids)
    for first in range(0, len(packed.ids), rows):
        # Shapes are fixed on the GPU: the last group repeats its rows, without anchors.
        used = min(rows, len(packed.ids) - first)
        chosen = first + np.resize(np.arange(used), rows)
        group = PackedRows(*(array[chosen] for array in packed))
        group.anchors[used:] = False
        ids, positions, ends, starts = to_device(group)
        features = target_features(target, ids, positions, starts)
        while group.anchors.any():
            anchors = np.full((rows, blocks), -1, np.int64)
            for row in range(used):
                places = np.flatnonzero(group.anchors[row])[:blocks]
                anchors[row, : len(places)] = places
                group.anchors[row, places] = False
            at = torch.from_numpy(anchors).to(DEVICE)
            batch = blocks_at(at, ids, positions, ends, target.embedding)
            with torch.no_grad():
                masks = block_masks(at, starts)
                _, best = drafter(batch, features, positions, masks, target.embedding)
            counts = accepted(best, batch).cpu().numpy()
            for row in range(used):
                there = anchors[row] >= 0
                result[first + row, anchors[row][there]] = counts[row][there]
    return result


def tokens_per_pass(
    target: Target, drafter: Drafter, held_out: HeldOut, rows: int, blocks: int, length: int
) -> dict[int, dict[str, Any]]:
    """Mean tokens of a verify pass (accepted + 1), by block size and kind of prompt."""
    needed = -(-len(held_out.answers) * max(len(a.ids) for a in held_out.answers) // length) + 1
    packed, places = pack(held_out.answers, needed * 2, length)
    counts = accepted_at_anchors(target, drafter, packed, rows, blocks)
    result = {}
    for size in BLOCK_SIZES:
        tokens: collections.Counter[str] = collections.Counter()
        passes: collections.Counter[str] = collections.Counter()
        for place in places:
            kind = held_out.kinds[place.answer]
            ids, prompt_length = held_out.answers[place.answer]
            at, last = place.start + prompt_length, place.start + len(ids) - 1
            while at < last:
                gained = min(int(counts[place.row, at]), size - 1, last - at - 1) + 1
                tokens[kind] += gained
                passes[kind] += 1
                at += gained
        means = {kind: round(tokens[kind] / passes[kind], 2) for kind in tokens}
        result[size] = {**means, "all": round(tokens.total() / passes.total(), 3)}
    return result
