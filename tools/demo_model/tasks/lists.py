"""Sorting, reversing, counting and choosing in short lists."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import MEMBERS_OF_GROUP
from tools.demo_model.tasks.task import (
    ONES,
    Task,
    capitalize,
    choose,
    numbered,
    ordinal,
    sample_words,
)


def sort(rng: Random, lexicon: Lexicon) -> Task:
    if rng.random() < 0.6:
        words = sample_words(rng, lexicon, 3, 9)
        ordered = sorted(words)
        request = choose(
            rng,
            "Sort these words alphabetically: ",
            "Put these words in alphabetical order: ",
            "Sort: ",
        )
        initials = ", ".join(word[0] for word in ordered)
        reasoning = f"The first letters in order are: {initials}."
        return Task(request + ", ".join(words), reasoning, ", ".join(ordered))
    numbers = [rng.randint(0, 99) for _ in range(rng.randint(3, 9))]
    request = "Sort these numbers from large to small: "
    if ascending := rng.random() < 0.6:
        request = choose(rng, "Sort these numbers: ", "Sort these numbers from small to large: ")
    ordered_numbers = sorted(numbers, reverse=not ascending)
    return Task(
        request + ", ".join(map(str, numbers)),
        f"The smallest is {min(numbers)} and the largest is {max(numbers)}.",
        ", ".join(map(str, ordered_numbers)),
    )


def reverse(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    if kind < 0.5:
        words = sample_words(rng, lexicon, 3, 9)
        request = choose(
            rng,
            "Reverse the order of these words: ",
            "Reverse this list: ",
            "Write these words in reverse order: ",
        )
        reasoning = f"The last word is {words[-1]}, so it comes first."
        return Task(request + ", ".join(words), reasoning, ", ".join(words[::-1]))
    word = rng.choice(lexicon.frequent_words)
    if kind < 0.75:
        question = choose(
            rng, f"Spell the word {word}.", f'How do you spell "{word}"?', f'Spell "{word}".'
        )
        return Task(question, f"I write each letter of {word}.", "-".join(word).upper())
    question = choose(rng, f"Spell {word} backwards.", f'Write the word "{word}" backwards.')
    return Task(question, f"The letters are {'-'.join(word)}.", word[::-1])


def length(rng: Random, lexicon: Lexicon) -> Task:
    words = sample_words(rng, lexicon, 2, 12)
    request = choose(rng, "How many words are in this list? ", "Count the words: ")
    return Task(request + ", ".join(words), numbered(words), f"There are {len(words)} words.")


def pick(rng: Random, lexicon: Lexicon) -> Task:
    words = sample_words(rng, lexicon, 4, 14)
    i = rng.randrange(len(words))
    kind = rng.random()
    listed = ", ".join(words)
    if kind < 0.4:
        request = choose(
            rng,
            f"What is the {ordinal(i + 1)} word? ",
            f"Tell me word number {i + 1} of this list: ",
        )
        return Task(request + listed, numbered(words[: i + 1]), words[i])
    if kind < 0.6:
        return Task(f"What is the last word? {listed}", "I look at the end of the list.", words[-1])
    if kind < 0.8 and i + 1 < len(words):
        return Task(
            f"Which word comes after {words[i]}? {listed}",
            f"I find {words[i]} in the list.",
            words[i + 1],
        )
    word = rng.choice(words) if rng.random() < 0.5 else rng.choice(lexicon.words)
    answer = f"Yes, {word} is in the list."
    if word not in words:
        answer = f"No, {word} is not in the list."
    return Task(f"Is the word {word} in this list? {listed}", f"I look for {word}.", answer)


def group(rng: Random, lexicon: Lexicon) -> Task:
    name = rng.choice(list(MEMBERS_OF_GROUP))
    members = MEMBERS_OF_GROUP[name]
    size = rng.randint(2, min(8, len(members)))
    if rng.random() < 0.6:
        return _name_members(rng, name, members[:size])
    chosen = rng.sample(members, 3)
    other = rng.choice([x for x in MEMBERS_OF_GROUP if x != name])
    odd = rng.choice([word for word in MEMBERS_OF_GROUP[other] if word not in members])
    mixed = [*chosen, odd]
    rng.shuffle(mixed)
    return Task(
        "Which word does not belong? " + ", ".join(mixed),
        f"{capitalize(', '.join(chosen))} are {name}. {capitalize(odd)} is not.",
        f"{capitalize(odd)} does not belong, because the others are {name}.",
    )


def _name_members(rng: Random, name: str, members: list[str]) -> Task:
    size = len(members)
    as_lines = rng.random() < 0.6
    question = choose(
        rng, f"Name {ONES[size]} {name}.", f"List {ONES[size]} {name}.", f"Give me {size} {name}."
    )
    answer = ", ".join(members)
    if as_lines:
        question += choose(rng, " Use a numbered list.", " Make a numbered list.")
        answer = "\n".join(f"{i}. {word}" for i, word in enumerate(members, 1))
    return Task(question, f"I need {size} {name}.", answer)
