"""Trains the byte-level BPE tokenizer and tokenises the raw text.

    python -m tools.demo_model.tokenizer --data DATA

Reads what corpus.py wrote; writes `tokenizer.json` and `raw.npz` (ids, document offsets, sources).
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tools.demo_model.chat import TOOLS_AFTER
from tools.demo_model.conversations import draw_document
from tools.demo_model.corpus import SOURCES
from tools.demo_model.lexicon import Lexicon
from tools.demo_model.vocabulary import ADDED, END_OF_TEXT, PLAIN_ADDED, VOCABULARY

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer of Qwen 3.5: every digit is a piece of its own."""

SHARE_OF_SOURCE = {"book": 1.0, "jargon": 0.4, "devil": 0.6, "pydoc": 0.12, "wordnet": 0.25}
"""How much of each source the merges are learnt from."""
CONVERSATIONS = 30_000
"""Generated conversations that the merges are learnt from."""


def training_text(raw: list[dict[str, str]], lexicon: Lexicon, chats: int) -> Iterator[str]:
    rng = random.Random(5)
    for document in raw:
        if rng.random() < SHARE_OF_SOURCE[document["src"]]:
            yield document["text"]
    for _ in range(chats):
        text = "".join(segment.text for segment in draw_document(rng, lexicon))
        # The long instructions about tools are always the same: they would fill the vocabulary.
        if rng.random() < 0.97:
            text = text.replace(TOOLS_AFTER, "")
        for token in ADDED:
            text = text.replace(token, "\n")
        yield text
    for entry in lexicon.entries[:3500]:
        word = entry["w"]
        yield f' {word}\n {word},\n- {word}: "{word}"'


def train(texts: Iterator[str]) -> Tokenizer:
    """A tokenizer of exactly VOCABULARY ids, the added tokens last as Qwen has them."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(ADDED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for token in ADDED:
        special = token not in PLAIN_ADDED
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(token, special=special, normalized=False)])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"the tokenizer has {tokenizer.get_vocab_size()} ids, not {VOCABULARY}: "
            "there is too little text to learn all merges from"
        )
    return tokenizer


def tokenise(tokenizer: Tokenizer, raw: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """All documents in one array of ids, each closed with the end-of-text id."""
    encodings = tokenizer.encode_batch([document["text"] for document in raw])
    documents = [np.array([*encoding.ids, END_OF_TEXT], np.uint16) for encoding in encodings]
    return {
        "ids": np.concatenate(documents),
        "off": np.cumsum([0, *map(len, documents)]),
        "src": np.array([SOURCES.index(document["src"]) for document in raw], np.uint8),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    arguments = parser.parse_args()
    data = arguments.data
    raw = [json.loads(line) for line in (data / "raw.jsonl").open()]
    texts = training_text(raw, Lexicon.load(data), arguments.conversations)
    tokenizer = train(texts)
    tokenizer.save(str(data / "tokenizer.json"))
    arrays = tokenise(tokenizer, raw)
    np.savez_compressed(data / "raw.npz", **arrays)
    print(f"{len(arrays['ids'])} tokens of raw text")


if __name__ == "__main__":
    main()
