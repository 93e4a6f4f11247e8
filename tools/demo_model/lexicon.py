"""The common words of WordNet and the sentences of the books, as the task generator uses them."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
"""One word: `w` word, `pos` part of speech, `d` meaning, `c` count; perhaps `ex` example phrase,
`syn` synonym, `hyper` wider class and `ant` opposite."""


class Lexicon:
    """Words sorted by frequency, cut into the pools that the tasks draw from."""

    def __init__(self, entries: list[Entry], sentences: Iterable[str] = ()) -> None:
        self.entries = entries
        self.sentences = list(sentences)
        self.defined = entries[:3000]
        self.words = [entry["w"] for entry in entries[:2200] if len(entry["w"]) >= 3]
        self.frequent_words = self.words[:900]
        self.with_opposite = [entry for entry in entries[:4500] if "ant" in entry]
        self.with_synonym = [entry for entry in entries[:3000] if "syn" in entry]
        self.with_class = [entry for entry in entries[:3500] if "hyper" in entry]
        self.examples = [entry["ex"] for entry in entries if len(entry.get("ex", "")) > 12]

    @classmethod
    def load(cls, data: Path) -> "Lexicon":
        """Reads `words.json` and `sentences.json`, which corpus.py writes."""
        entries = json.loads((data / "words.json").read_text())
        return cls(entries, json.loads((data / "sentences.json").read_text()))


def book_sentences(text: str) -> list[str]:
    """The plain sentences of 21 to 119 characters in a text whose paragraphs are single lines."""
    return [
        sentence
        for sentence in re.split(r"(?<=[.!?])\s+", text)
        if 20 < len(sentence) < 120
        and sentence.isascii()
        and sentence[0].isupper()
        and sentence[-1] in ".!?"
        and sentence.count('"') % 2 == 0
        and "\n" not in sentence
    ]
