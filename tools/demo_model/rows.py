"""Endless packed rows of tokens: generated chats and raw text, whole documents where they fit."""

import os
import random
from collections.abc import Iterator
from multiprocessing import Queue
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tools.demo_model.chat import Segment
from tools.demo_model.conversations import draw_document
from tools.demo_model.lexicon import Lexicon

RAW_WEIGHTS = [0.42, 0.10, 0.04, 0.18, 0.26]
"""How often each source of corpus.SOURCES is drawn."""
MOST_MISSES = 6
"""After more chats than this that did not fit, a row is filled up."""
VALIDATION_SEED = 10**9

Split = Literal["train", "chat", "raw"]
"""Training rows, or held-out rows of chats alone or of raw text alone."""


class Document(NamedTuple):
    ids: list[int]
    weights: list[float]


class Row(NamedTuple):
    """One packed row or, stacked, a batch: int32 ids, float32 weights, int32 positions.

    A position counts from 0 within its document.
    """

    ids: np.ndarray
    weights: np.ndarray
    positions: np.ndarray


class _RowBuilder:
    def __init__(self, length: int) -> None:
        self.length = length
        self.ids: list[int] = []
        self.weights: list[float] = []
        self.positions: list[int] = []

    @property
    def room(self) -> int:
        return self.length - len(self.ids)

    def put(self, document: Document) -> None:
        """Appends a document. Nothing before its first token can predict that: weight 0."""
        self.ids += document.ids
        self.weights += [0.0, *document.weights[1:]]
        self.positions += range(len(document.ids))

    def row(self) -> Row:
        return Row(
            np.array(self.ids, np.int32),
            np.array(self.weights, np.float32),
            np.array(self.positions, np.int32),
        )


class RowSource:
    """Draws documents and packs them into rows of `length + 1` tokens (inputs and next tokens)."""

    def __init__(self, data: Path, length: int, raw_share: float = 0.08) -> None:
        self.length = length
        self.raw_share = raw_share
        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.lexicon = Lexicon.load(data)
        with np.load(data / "raw.npz") as arrays:
            self.raw_ids, self.offsets, source = arrays["ids"], arrays["off"], arrays["src"]
        held_out = np.arange(len(source)) % 40 == 7
        kinds = range(len(RAW_WEIGHTS))
        self.training = [np.where((source == kind) & ~held_out)[0] for kind in kinds]
        self.validation = [np.where((source == kind) & held_out)[0] for kind in kinds]

    def encode(self, segments: list[Segment]) -> list[int]:
        """Ids of the segments, each tokenised by itself."""
        return [token for text, _ in segments for token in self.tokenizer.encode(text).ids]

    def chat(self, rng: random.Random) -> Document:
        ids: list[int] = []
        weights: list[float] = []
        for text, weight in draw_document(rng, self.lexicon):
            encoded = self.tokenizer.encode(text).ids
            ids += encoded
            weights += [weight] * len(encoded)
        return Document(ids, weights)

    def raw(self, rng: random.Random, most: int, held_out: bool = False) -> Document:
        """The first `most` tokens of a raw text."""
        pools = self.validation if held_out else self.training
        pool = pools[rng.choices(range(len(pools)), RAW_WEIGHTS)[0]]
        i = rng.choice(pool)
        ids = self.raw_ids[self.offsets[i] : self.offsets[i + 1]][:most].tolist()
        return Document(ids, [1.0] * len(ids))

    def rows(self, seed: int, split: Split = "train") -> Iterator[Row]:
        rng = random.Random(seed)
        waiting: list[Document] = []
        while True:
            yield self._row(rng, waiting, split)

    def batches(self, seed: int, size: int, split: Split = "train") -> Iterator[Row]:
        rows = self.rows(seed, split)
        while True:
            columns = zip(*(next(rows) for _ in range(size)), strict=True)
            yield Row(*(np.stack(column) for column in columns))

    def _row(self, rng: random.Random, waiting: list[Document], split: Split) -> Row:
        builder = _RowBuilder(self.length + 1)
        misses = 0
        while builder.room:
            if self._wants_raw(rng, split, misses):
                most = builder.room
                if misses <= MOST_MISSES:
                    most = min(most, rng.randint(200, 1500))
                builder.put(self.raw(rng, most, held_out=split != "train"))
                continue
            if (i := _fitting(waiting, builder, misses)) is not None:
                builder.put(waiting.pop(i))
                continue
            chat = self.chat(rng)
            if len(chat.ids) > builder.length:
                continue
            if len(chat.ids) <= builder.room:
                builder.put(chat)
                continue
            misses += 1
            if len(waiting) < 80:
                waiting.append(chat)
            if split == "chat" and misses > MOST_MISSES:
                builder.put(Document(chat.ids[: builder.room], [0.0] * builder.room))
        return builder.row()

    def _wants_raw(self, rng: random.Random, split: Split, misses: int) -> bool:
        if split == "raw" or (split == "train" and rng.random() < self.raw_share):
            return True
        return split == "train" and misses > MOST_MISSES


def _fitting(waiting: list[Document], builder: _RowBuilder, misses: int) -> int | None:
    """A waiting chat for this row: the longest at its start and after a miss, else the oldest."""
    fit = [i for i, chat in enumerate(waiting) if len(chat.ids) <= builder.room]
    if not fit:
        return None
    if not builder.ids or misses:
        return max(fit, key=lambda i: len(waiting[i].ids))
    return fit[0] if len(waiting) > 40 else None


def feed(source: RowSource, seed: int, size: int, queue: "Queue[Any]") -> None:
    """Body of a worker process: puts training batches into the queue for ever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for batch in source.batches(seed, size):
        queue.put(batch)
