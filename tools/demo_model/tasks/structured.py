"""Tables and JSON."""

import json
from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import CITIES, COLOURS, NAMES
from tools.demo_model.tasks.task import Task, choose, sample_words


def table(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    if kind < 0.4:
        first, more = rng.randint(1, 9), rng.randint(3, 8)
        last = first + more
        question = choose(
            rng,
            f"Make a table of the squares from {first} to {last}.",
            f"Show the squares of {first} to {last} as a markdown table.",
        )
        rows = [f"| {i} | {i * i} |" for i in range(first, last + 1)]
        answer = "\n".join(["| n | n * n |", "| --- | --- |", *rows])
        return Task(question, "I square each number.", answer)
    if kind < 0.7:
        factor = rng.randint(2, 12)
        question = choose(
            rng, f"Show the times table of {factor}.", f"Write the {factor} times table."
        )
        answer = "\n".join(f"{i} * {factor} = {i * factor}" for i in range(1, 11))
        return Task(question, f"I multiply {factor} by 1 to 10.", answer)
    names = rng.sample(NAMES, rng.randint(2, 5))
    ages = [(name, rng.randint(5, 90)) for name in names]
    rows = [f"| {name} | {age} |" for name, age in ages]
    return Task(
        "Make a table of names and ages: " + ", ".join(f"{name} {age}" for name, age in ages),
        "The columns are name and age.",
        "\n".join(["| Name | Age |", "| --- | --- |", *rows]),
    )


def json_text(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    name, age = rng.choice(NAMES), rng.randint(5, 90)
    city, colour = rng.choice(CITIES), rng.choice(COLOURS)
    if kind < 0.45:
        return _person(rng, name, age, city, colour)
    if kind < 0.7:
        words = sample_words(rng, lexicon, 2, 8)
        request = choose(
            rng, "Make a JSON array of these words: ", "Write this list as a JSON array: "
        )
        reasoning = f"There are {len(words)} words."
        return Task(request + ", ".join(words), reasoning, json.dumps(words))
    if kind < 0.85:
        word = rng.choice(lexicon.frequent_words)
        return Task(
            f'Give me a JSON object with the word "{word}" and its length.',
            f"{word} has {len(word)} letters.",
            json.dumps({"word": word, "length": len(word)}),
        )
    keys = rng.sample(lexicon.words, rng.randint(2, 5))
    values = {key: rng.randint(0, 99) for key in keys}
    key = rng.choice(keys)
    return Task(
        f'Given {json.dumps(values)}, what is the value of "{key}"?',
        f'I look up the key "{key}".',
        f'The value of "{key}" is {values[key]}.',
    )


def _person(rng: Random, name: str, age: int, city: str, colour: str) -> Task:
    size = rng.randint(2, 4)
    attributes: list[tuple[str, str | int, str]] = rng.sample(
        [
            ("age", age, f"is {age} years old"),
            ("city", city, f"lives in {city}"),
            ("colour", colour, f"likes {colour}"),
        ],
        size - 1,
    )
    *leading, last = [phrase for _, _, phrase in attributes]
    phrases = f"{', '.join(leading)} and {last}" if leading else last
    request = choose(
        rng,
        "Turn this into JSON: ",
        "Extract the data as JSON: ",
        "Answer in JSON only. ",
        "Write this as a JSON object: ",
    )
    person = {"name": name, **{key: value for key, value, _ in attributes}}
    return Task(
        f"{request}{name} {phrases}.", f"The keys are {', '.join(person)}.", json.dumps(person)
    )
