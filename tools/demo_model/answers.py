"""Prompts for the drafter's training, the target's own answers to them, and their packing."""

import os
import random
from multiprocessing import Queue
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tools.demo_model.chat import ANSWER_WEIGHT, Conversation, Message, render
from tools.demo_model.conversations import draw_conversation
from tools.demo_model.decode import GreedyDecoder
from tools.demo_model.layers import DEVICE
from tools.demo_model.rows import Row, RowSource
from tools.demo_model.tasks import TaskMaker
from tools.demo_model.vocabulary import END_OF_TEXT, first_end

RAW_SHARE = 0.07
LONGEST_PROMPT = 380
LONGEST_TASK_PROMPT = 479
"""For a held-out prompt of one kind of task."""
LONGEST_ANSWER = 160
"""Tokens that are kept of an answer without an end."""


class Answer(NamedTuple):
    ids: np.ndarray
    """int32, the prompt and the answer with its end mark."""
    prompt_length: int


class PackedRows(NamedTuple):
    """(rows, length) each: ids, positions, places that may be anchors, ends of documents."""

    ids: np.ndarray
    positions: np.ndarray
    anchors: np.ndarray
    ends: np.ndarray

    def joined(self, other: "PackedRows") -> "PackedRows":
        return PackedRows(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Place(NamedTuple):
    """Where pack() put an answer."""

    row: int
    start: int
    answer: int


def _until_answer(source: RowSource, rng: random.Random, conversation: Conversation) -> list[int]:
    segments = render(conversation)
    answers = [i for i, segment in enumerate(segments) if segment.weight == ANSWER_WEIGHT]
    return source.encode(segments[: rng.choice(answers)])


def raw_prompt(source: RowSource, rng: random.Random, held_out: bool = False) -> list[int]:
    """The beginning of a raw text, without its end mark."""
    ids = source.raw(rng, rng.randint(16, 200), held_out).ids
    return ids[:-1] if ids[-1] == END_OF_TEXT and len(ids) > 1 else ids


def mixed_prompt(source: RowSource, rng: random.Random, held_out: bool = False) -> list[int]:
    """A conversation cut before one of its answers, or a little raw text."""
    while True:
        if rng.random() < RAW_SHARE:
            return raw_prompt(source, rng, held_out)
        ids = _until_answer(source, rng, draw_conversation(rng, source.lexicon))
        if len(ids) <= LONGEST_PROMPT:
            return ids


def tool_prompt(source: RowSource, rng: random.Random) -> list[int]:
    """A conversation with tool calls, cut before one of its answers."""
    while True:
        conversation = draw_conversation(rng, source.lexicon)
        if any(message.calls for message in conversation.messages):
            ids = _until_answer(source, rng, conversation)
            if len(ids) <= LONGEST_TASK_PROMPT:
                return ids


def task_prompt(source: RowSource, rng: random.Random, make: TaskMaker) -> list[int]:
    """A single question of one kind."""
    while True:
        question, reasoning, answer = make(rng, source.lexicon)
        reply = Message("assistant", answer, reasoning if rng.random() < 0.5 else "")
        ids = _until_answer(source, rng, Conversation([Message("user", question), reply], []))
        if len(ids) <= LONGEST_TASK_PROMPT:
            return ids


def feed_prompts(source: RowSource, seed: int, queue: "Queue[Any]") -> None:
    """Body of a worker process: puts lists of 256 prompts into the queue for ever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rng = random.Random(seed)
    while True:
        queue.put([mixed_prompt(source, rng) for _ in range(256)])


def answer(decoder: GreedyDecoder, prompts: list[list[int]]) -> list[Answer | None]:
    """The target's greedy answers; None for one of a single token, which has nothing to draft."""
    answers: list[Answer | None] = []
    for prompt, ids in zip(prompts, decoder.generate(prompts).cpu().numpy(), strict=True):
        start = len(prompt)
        end = first_end(ids[start:].tolist())
        stop = min(decoder.length, start + LONGEST_ANSWER) if end is None else start + end + 1
        kept = stop - start >= 2
        answers.append(Answer(ids[:stop].astype(np.int32), start) if kept else None)
    return answers


def pack(answers: list[Answer], rows: int, length: int) -> tuple[PackedRows, list[Place]]:
    """Fills rows with answers in their order, as many as fit; the rest of a row is padding."""
    ids = np.full((rows, length), END_OF_TEXT, np.int32)
    positions = np.zeros((rows, length), np.int32)
    anchors = np.zeros((rows, length), bool)
    ends = np.full((rows, length), length, np.int32)
    places = []
    i = 0
    for row in range(rows):
        start = 0
        while i < len(answers) and start + len(answers[i].ids) <= length:
            tokens, prompt_length = answers[i]
            stop = start + len(tokens)
            ids[row, start:stop] = tokens
            positions[row, start:stop] = np.arange(len(tokens))
            anchors[row, start + prompt_length : stop - 1] = True
            ends[row, start:stop] = stop
            places.append(Place(row, start, i))
            start, i = stop, i + 1
        positions[row, start:] = np.arange(length - start)
    return PackedRows(ids, positions, anchors, ends), places


def corpus_rows(batch: Row, length: int) -> PackedRows:
    """Training rows of the target; the answers of the corpus hold the anchors."""
    ids, weights, positions = (array[:, :length] for array in batch)
    ends = np.zeros_like(ids)
    for row in range(len(ids)):
        starts = np.flatnonzero(positions[row] == 0)
        stops = np.append(starts[1:], length)
        ends[row] = np.repeat(stops, stops - starts)
    anchors = (weights >= 0.99) & (np.arange(length) + 1 < ends)
    return PackedRows(ids, positions, anchors, ends)


def to_device(packed: PackedRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, positions, ends, and the starts of the documents."""
    ids, positions, ends = (
        torch.from_numpy(array).to(DEVICE) for array in (packed.ids, packed.positions, packed.ends)
    )
    starts = (torch.arange(ids.shape[1], device=DEVICE) - positions).int()
    return ids.long(), positions, ends.long(), starts
