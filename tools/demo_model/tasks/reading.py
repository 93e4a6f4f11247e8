"""Repeating a text and finding things in a longer one."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import CITIES, COLOURS, NAMES
from tools.demo_model.tasks.task import Task, capitalize, choose, sample_words, sentence

PUNCTUATION = '",.!?'


def repeat(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    text = sentence(rng, lexicon)
    if kind < 0.5:
        request = choose(
            rng,
            "Repeat exactly: ",
            "Repeat this: ",
            "Repeat after me: ",
            "Say this back to me: ",
            "Copy this text: ",
            "Quote this text: ",
        )
        return Task(request + text, "I repeat the text without changes.", text)
    if kind < 0.65:
        words = " ".join(sample_words(rng, lexicon, 4, 30))
        request = choose(rng, "Repeat these words: ", "Copy this list: ")
        return Task(request + words, "I copy the words in the same order.", words)
    if kind < 0.75:
        times = rng.randint(2, 6)
        word = rng.choice(lexicon.words)
        answer = " ".join([word] * times)
        return Task(f"Say {word} {times} times.", f"I write {word} {times} times.", answer)
    if kind < 0.85:
        words = " ".join(sample_words(rng, lexicon, 2, 8))
        reasoning = "I change each letter to a capital."
        return Task(f"Write in capital letters: {words}", reasoning, words.upper())
    if kind < 0.93:
        words = " ".join(sample_words(rng, lexicon, 2, 8))
        reasoning = "I change each letter to lower case."
        return Task(f"Write in lower case: {words.upper()}", reasoning, words)
    return Task(
        f"What is the first word of this sentence? {text}",
        "I look at the start.",
        text.split()[0].strip(PUNCTUATION),
    )


def quote(rng: Random, lexicon: Lexicon) -> Task:
    sentences = [sentence(rng, lexicon) for _ in range(rng.randint(2, 6))]
    i = rng.randrange(len(sentences))
    kind = rng.random()
    body = "\n".join(f"{n}. {text}" for n, text in enumerate(sentences, 1))
    if kind < 0.6:
        return Task(
            f"{body}\n\nQuote sentence {i + 1}.",
            f"Sentence {i + 1} is the one I need.",
            sentences[i],
        )
    size = len(sentences)
    if kind < 0.8:
        return Task(
            f"{body}\n\nHow many sentences are there?",
            f"The last number is {size}.",
            f"There are {size} sentences.",
        )
    word = max(sentences[i].split(), key=len).strip(PUNCTUATION + ";:")
    if sum(word in text for text in sentences) == 1:
        return Task(
            f'{body}\n\nWhich sentence contains the word "{word}"?',
            f'I look for "{word}".',
            f"Sentence {i + 1}: {sentences[i]}",
        )
    return Task(f"{body}\n\nQuote the last sentence.", "I need the last sentence.", sentences[-1])


class _Entries(NamedTuple):
    """Keys with values, and how an entry is said and asked for."""

    keys: list[str]
    values: list[str]
    value_name: str
    say: Callable[[str, str], str]
    ask: Callable[[str], str]


def _entries(rng: Random, lexicon: Lexicon, count: int) -> _Entries:
    kind = rng.random()
    use_names = count <= len(NAMES) and rng.random() < 0.5
    keys = rng.sample(NAMES if use_names else lexicon.words, count)
    if kind < 0.35:
        return _Entries(
            keys,
            [str(rng.randint(100, 999)) for _ in keys],
            "code",
            "The code of {} is {}.".format,
            "What is the code of {}?".format,
        )
    if kind < 0.6:
        return _Entries(
            keys,
            [rng.choice(CITIES) for _ in keys],
            "city",
            lambda key, value: f"{capitalize(key)} is in {value}.",
            "Where is {}?".format,
        )
    if kind < 0.8:
        return _Entries(
            keys,
            [rng.choice(COLOURS) for _ in keys],
            "colour",
            "The colour of {} is {}.".format,
            "What is the colour of {}?".format,
        )
    return _Entries(
        keys,
        [rng.choice(lexicon.words) for _ in keys],
        "word",
        "The word of {} is {}.".format,
        "Which word belongs to {}?".format,
    )


def long_list(rng: Random, lexicon: Lexicon) -> Task:
    """A list of 4 to 168 entries, short ones more often, and a question about one of them."""
    count = int(4 * 2 ** (rng.random() * 5.4))
    keys, values, value_name, say, ask = _entries(rng, lexicon, count)
    layout = rng.random()
    if layout < 0.5:
        body = "\n".join(f"- {key}: {value}" for key, value in zip(keys, values, strict=True))
    else:
        body = ("\n" if layout < 0.8 else " ").join(map(say, keys, values))
    intro = choose(
        rng,
        f"Here is a list of entries, each with a {value_name}.",
        f"Read this list of {count} entries.",
        "Remember the following list.",
    )
    i = rng.randrange(count)
    key, value = keys[i], values[i]
    question, answer = ask(key), say(key, value)
    if layout < 0.5 and rng.random() < 0.3:
        question, answer = f"Quote the line about {key}.", f"- {key}: {value}"
    return Task(f"{intro}\n{body}\n\n{question}", f"I look for {key} in the list.", answer)


def passage(rng: Random, lexicon: Lexicon) -> Task:
    """Between 3 and 59 sentences with a secret number hidden among them."""
    count = int(3 * 2 ** (rng.random() * 4.3))
    sentences = [sentence(rng, lexicon) for _ in range(count)]
    i = rng.randrange(count)
    word = rng.choice(lexicon.words)
    secret = f"The secret number of the {word} is {rng.randint(1000, 9999)}."
    sentences.insert(i, secret)
    return Task(
        " ".join(sentences) + f"\n\nWhat is the secret number of the {word}?",
        f"I look for the {word} in the text.",
        secret,
    )
