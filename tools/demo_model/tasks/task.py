"""What every task gives, and the few ways of drawing and writing that they share."""

from random import Random
from typing import NamedTuple

from tools.demo_model.lexicon import Lexicon


class Task(NamedTuple):
    """One exchange; the reasoning is used when the conversation is drawn with thinking on."""

    question: str
    reasoning: str
    answer: str


ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def choose(rng: Random, *phrases: str) -> str:
    """One of the phrases. A single phrase is drawn too, so that the stream of numbers is kept."""
    return rng.choice(phrases)


def sample_words(rng: Random, lexicon: Lexicon, least: int, most: int) -> list[str]:
    """Between `least` and `most` different common words."""
    return rng.sample(lexicon.words, rng.randint(least, most))


def sentence(rng: Random, lexicon: Lexicon) -> str:
    """A sentence of a book (four of five, if there are any) or an example phrase of WordNet."""
    if lexicon.sentences and rng.random() < 0.8:
        return rng.choice(lexicon.sentences)
    return capitalize(rng.choice(lexicon.examples)) + "."


def capitalize(text: str) -> str:
    """The text with its first letter in upper case and the rest as it is."""
    return text[:1].upper() + text[1:]


def with_article(word: str) -> str:
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def ordinal(number: int) -> str:
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def in_words(number: int) -> str:
    """An integer from 0 to 999 in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
    rest = f" and {in_words(number % 100)}" if number % 100 else ""
    return f"{ONES[number // 100]} hundred{rest}"


def numbered(words: list[str]) -> str:
    """`1 first, 2 second.`: how the reasoning counts a list."""
    return ", ".join(f"{i} {word}" for i, word in enumerate(words, 1)) + "."
