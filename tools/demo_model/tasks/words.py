"""Tasks about the meaning of words and their letters."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import ALPHABET
from tools.demo_model.tasks.task import Task, capitalize, choose, with_article


def define(rng: Random, lexicon: Lexicon) -> Task:
    entry = (
        rng.choice(lexicon.defined) if rng.random() < 0.75 else rng.choice(lexicon.defined[:700])
    )
    word = entry["w"]
    question = choose(
        rng,
        f"What does {word} mean?",
        f'What does "{word}" mean?',
        f"Define {word}.",
        f'Define "{word}".',
        f"What is the meaning of {word}?",
        f"Give me a definition of the word {word}.",
        f'Explain the word "{word}".',
        f"define {word}",
        f'What is the definition of "{word}"?',
    )
    answer = f"{capitalize(word)} ({entry['pos']}): {entry['d']}."
    if "ex" in entry and rng.random() < 0.5:
        question += choose(
            rng, " Give an example.", " Use it in a sentence.", " Show an example too."
        )
        answer += f' Example: "{entry["ex"]}"'
    reasoning = f'The user wants the meaning of "{word}". It is {with_article(entry["pos"])}.'
    return Task(question, reasoning, answer)


def opposite(rng: Random, lexicon: Lexicon) -> Task:
    entry = rng.choice(lexicon.with_opposite)
    word, other = entry["w"], entry["ant"]
    if rng.random() < 0.3:
        word, other = other, word
    question = choose(
        rng,
        f"What is the opposite of {word}?",
        f'Give an antonym of "{word}".',
        f"Opposite of {word}?",
    )
    return Task(
        question,
        f'I need a word with the opposite meaning of "{word}".',
        choose(rng, f"The opposite of {word} is {other}."),
    )


def synonym(rng: Random, lexicon: Lexicon) -> Task:
    entry = rng.choice(lexicon.with_synonym)
    word = entry["w"]
    question = choose(
        rng,
        f"Give a synonym of {word}.",
        f'What is another word for "{word}"?',
        f"Which word means the same as {word}?",
    )
    return Task(
        question,
        f'I need a word with the same meaning as "{word}".',
        f"Another word for {word} is {entry['syn']}.",
    )


def wider_class(rng: Random, lexicon: Lexicon) -> Task:
    entry = rng.choice(lexicon.with_class)
    word = entry["w"]
    question = choose(
        rng,
        f"What kind of thing is {with_article(word)}?",
        f'What sort of thing is "{word}"?',
        f"Is there a general word for {word}?",
    )
    return Task(
        question,
        f'I should name the wider class of "{word}".',
        f"{capitalize(word)} is a kind of {entry['hyper']}.",
    )


def alphabet(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    i = rng.randint(1, 24)
    before, letter, after = ALPHABET[i - 1 : i + 2].upper()
    order = f"The order is {before}, {letter}, {after}."
    if kind < 0.25:
        question = choose(
            rng, f"Which letter comes after {letter}?", f"What letter follows {letter}?"
        )
        return Task(question, order, f"{after} comes after {letter}.")
    if kind < 0.5:
        question = choose(
            rng, f"Which letter comes before {letter}?", f"What letter is just before {letter}?"
        )
        return Task(question, order, f"{before} comes before {letter}.")
    if kind < 0.75:
        return _letters_in_order(rng)
    letter = rng.choice(ALPHABET)
    return Task(
        f"Is {letter.upper()} a vowel or a consonant?",
        "The vowels are A, E, I, O and U.",
        f"{letter.upper()} is a {'vowel' if letter in 'aeiou' else 'consonant'}.",
    )


def _letters_in_order(rng: Random) -> Task:
    first = rng.randint(0, 20)
    last = rng.randint(first + 2, 25)
    if rng.random() < 0.3:
        first, last = 0, 25
    letters = ALPHABET[first : last + 1].upper()
    question = f"List the letters from {letters[0]} to {letters[-1]}."
    if len(letters) == 26 and rng.random() < 0.5:
        question = "Say the alphabet."
    return Task(question, "I list the letters in order.", ", ".join(letters))


def letters(rng: Random, lexicon: Lexicon) -> Task:
    word = rng.choice(lexicon.frequent_words)
    if rng.random() < 0.6:
        question = choose(
            rng,
            f"How many letters are in the word {word}?",
            f'How many letters does "{word}" have?',
        )
        counted = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
        return Task(question, f"{counted}.", f"The word {word} has {len(word)} letters.")
    letter = rng.choice(word)
    count = word.count(letter)
    return Task(
        f"How many times does the letter {letter} appear in {word}?",
        f"The letters are {'-'.join(word)}. I count {count}.",
        f"The letter {letter} appears {count} time{'s' if count != 1 else ''} in {word}.",
    )
