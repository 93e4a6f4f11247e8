"""Reads the WordNet 3.1 database files: glosses, and the common words with their relations."""

import collections
import random
import re
from pathlib import Path
from typing import NamedTuple

from tools.demo_model.lexicon import Entry

PART_OF_SPEECH = {
    "n": "noun",
    "v": "verb",
    "a": "adjective",
    "r": "adverb",
}
FILE_SUFFIX = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
PART_OF_SENSE_TYPE = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
"""The digit after the per cent sign of a sense key; 5 is a satellite adjective."""


class Antonym(NamedTuple):
    """A pointer between two words, each given by its place (from 1) in its synset; 0 is none."""

    synset: tuple[str, str]
    source_word: int
    target_word: int


class Synset(NamedTuple):
    words: list[str]
    gloss: str
    hypernyms: list[str]
    antonyms: list[Antonym]


def _parse(line: str) -> tuple[str, Synset]:
    """The offset of a line of `data.*` and its synset (format: wndb(5WN))."""
    head, gloss = line.rstrip().split(" | ", 1)
    fields = head.split()
    count = int(fields[3], 16)
    words = [
        re.sub(r"\([a-z]+\)$", "", word.replace("_", " ")) for word in fields[4:][: 2 * count : 2]
    ]
    first = 5 + 2 * count
    pointers = [fields[first + 4 * i : first + 4 * i + 4] for i in range(int(fields[first - 1]))]
    hypernyms = [offset for symbol, offset, _, _ in pointers if symbol == "@"]
    antonyms = [
        Antonym(("a" if part == "s" else part, offset), int(places[:2], 16), int(places[2:], 16))
        for symbol, offset, part, places in pointers
        if symbol == "!"
    ]
    return fields[0], Synset(words, gloss.strip(), hypernyms, antonyms)


class WordNet:
    """All synsets, by part of speech and offset, from the folder that holds `data.noun`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.synsets: dict[tuple[str, str], Synset] = {}
        for part, suffix in FILE_SUFFIX.items():
            with (folder / f"data.{suffix}").open(encoding="latin-1") as file:
                for line in file:
                    if not line.startswith("  "):
                        offset, synset = _parse(line)
                        self.synsets[part, offset] = synset

    def glosses(self) -> list[str]:
        """`words (part of speech): gloss` of every synset, shuffled."""
        lines = [
            f"{', '.join(synset.words)} ({PART_OF_SPEECH[part]}): {synset.gloss}"
            for (part, _), synset in self.synsets.items()
        ]
        random.Random(1).shuffle(lines)
        return lines

    def common_words(self, unwanted: re.Pattern[str]) -> list[Entry]:
        """Words tagged at least twice, in order of frequency, each with its most frequent sense."""
        tagged: collections.Counter[str] = collections.Counter()
        best: dict[str, tuple[int, tuple[str, str]]] = {}
        with (self.folder / "index.sense").open(encoding="latin-1") as file:
            for line in file:
                key, offset, _, times_text = line.split()
                word, sense = key.split("%")
                times = int(times_text)
                if re.fullmatch(r"[a-z]{3,12}", word):
                    tagged[word] += times
                    if word not in best or times > best[word][0]:
                        best[word] = times, (PART_OF_SENSE_TYPE[sense[0]], offset)
        entries = []
        for word, times in tagged.most_common(6000):
            if times < 2:
                break
            part, offset = best[word][1]
            gloss = self.synsets[part, offset].gloss
            if not unwanted.search(gloss) and not unwanted.search(word):
                entry = self._entry(word, part, offset, times)
                if 8 <= len(entry["d"]) <= 110:
                    entries.append(entry)
        return entries

    def _entry(self, word: str, part: str, offset: str, times: int) -> Entry:
        synset = self.synsets[part, offset]
        meanings, *examples = re.split(r';\s*(?=")', synset.gloss)
        meaning = re.sub(r"^\([^)]*\)\s*", "", meanings.split(";")[0].strip())
        entry: Entry = {"w": word, "pos": PART_OF_SPEECH[part], "d": meaning, "c": times}
        example = examples[0].strip().strip('"').rstrip('"; ') if examples else ""
        if example and len(example) < 90 and '"' not in example:
            entry["ex"] = example
        synonyms = [w for w in synset.words if w.lower() != word and re.fullmatch(r"[a-z ]+", w)]
        if synonyms:
            entry["syn"] = synonyms[0]
        if part == "n" and synset.hypernyms:
            wider = self.synsets["n", synset.hypernyms[0]].words[0]
            if re.fullmatch(r"[a-z ]+", wider) and wider != word:
                entry["hyper"] = wider
        for antonym in synset.antonyms:
            if antonym.source_word and synset.words[antonym.source_word - 1] == word:
                opposite = self.synsets[antonym.synset].words[antonym.target_word - 1]
                if re.fullmatch(r"[a-z]+", opposite):
                    entry["ant"] = opposite
        return entry
