"""The functions that the generated conversations may call, and made-up uses of them."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import CITIES, NAMES
from tools.demo_model.tasks.task import capitalize, choose, sample_words, sentence


class ToolUse(NamedTuple):
    """A question, the arguments of the call that it needs, its result and the final answer."""

    question: str
    arguments: dict[str, Any]
    result: str
    answer: str


def _function(name: str, description: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    """An entry of `tools` in the chat format; the first parameter is the required one."""
    properties = {
        key: {"type": kind, "description": meaning} for key, (kind, meaning) in parameters.items()
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters)[:1],
            },
        },
    }


_DEFINITIONS = [
    _function(
        "get_weather",
        "Get the current weather of a city",
        city=("string", "Name of the city"),
    ),
    _function("get_time", "Get the current time in a city", city=("string", "Name of the city")),
    _function(
        "calculator",
        "Evaluate an arithmetic expression",
        expression=("string", "The expression to evaluate"),
    ),
    _function(
        "lookup_word",
        "Look up a word in the dictionary",
        word=("string", "The word to look up"),
    ),
    _function("read_file", "Read a text file", path=("string", "Path of the file")),
    _function(
        "write_file",
        "Write text to a file",
        path=("string", "Path of the file"),
        content=("string", "Text to write"),
    ),
    _function(
        "send_message",
        "Send a message to a person",
        to=("string", "Name of the person"),
        text=("string", "Text of the message"),
    ),
    _function("set_timer", "Start a timer", minutes=("integer", "Minutes to wait")),
    _function(
        "search",
        "Search the notes",
        query=("string", "Words to search for"),
        limit=("integer", "Most results to return"),
    ),
    _function(
        "set_light",
        "Switch a lamp on or off",
        room=("string", "The room"),
        on=("boolean", "True for on"),
    ),
]
TOOLS = {tool["function"]["name"]: tool for tool in _DEFINITIONS}
PATHS = [
    "notes.txt",
    "todo.md",
    "data/list.csv",
    "src/main.py",
    "README.md",
    "config.json",
    "log.txt",
    "docs/plan.md",
]


class _Subjects(NamedTuple):
    """Drawn for every use, whichever tool it is: the stream of numbers does not depend on it."""

    city: str
    person: str
    word: str
    minutes: int
    path: str


def _get_weather(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    city = subjects.city
    temperature = rng.randint(-5, 35)
    condition = rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy"])
    question = choose(
        rng,
        f"What is the weather in {city}?",
        f"How is the weather in {city} today?",
        f"Weather in {city}?",
        f"Is it warm in {city}?",
    )
    result = {"city": city, "temperature": temperature, "condition": condition}
    answer = f"It is {condition} in {city}, with a temperature of {temperature} degrees."
    return ToolUse(question, {"city": city}, json.dumps(result), answer)


def _get_time(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    city = subjects.city
    time = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    question = choose(rng, f"What time is it in {city}?", f"Tell me the time in {city}.")
    result = json.dumps({"city": city, "time": time})
    return ToolUse(question, {"city": city}, result, f"It is {time} in {city}.")


def _calculator(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    a, b = rng.randint(10, 999), rng.randint(2, 99)
    operator = rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    expression = f"{a} {operator} {b}"
    question = choose(
        rng,
        f"Use the calculator for {expression}.",
        f"What is {expression}? Use the tool.",
        f"Compute {expression} with the calculator.",
    )
    return ToolUse(question, {"expression": expression}, str(value), f"{expression} = {value}")


def _lookup_word(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    entry = rng.choice(lexicon.defined)
    word, meaning = entry["w"], entry["d"]
    question = choose(rng, f"Look up the word {word}.", f'Look up "{word}" in the dictionary.')
    result = json.dumps({"word": word, "meaning": meaning})
    return ToolUse(question, {"word": word}, result, f"{capitalize(word)} means: {meaning}.")


def _read_file(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    path = subjects.path
    text = sentence(rng, lexicon)
    question = choose(rng, f"Read the file {path}.", f"What is in {path}?", f"Show me {path}.")
    return ToolUse(question, {"path": path}, text, f"The file {path} says: {text}")


def _write_file(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    path = subjects.path
    text = " ".join(sample_words(rng, lexicon, 2, 6))
    question = choose(
        rng, f'Write "{text}" to {path}.', f'Save the text "{text}" in the file {path}.'
    )
    arguments = {"path": path, "content": text}
    return ToolUse(question, arguments, "ok", f"I wrote the text to {path}.")


def _send_message(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    person = subjects.person
    text = choose(
        rng,
        "hello",
        "see you tomorrow",
        "call me please",
        "dinner is ready",
        "I am late",
        "happy birthday",
    )
    question = choose(
        rng,
        f'Send {person} the message "{text}".',
        f"Tell {person}: {text}",
        f"Message {person} that says {text}.",
    )
    result = json.dumps({"status": "sent"})
    answer = f"I sent the message to {person}."
    return ToolUse(question, {"to": person, "text": text}, result, answer)


def _set_timer(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    minutes = subjects.minutes
    question = choose(
        rng,
        f"Set a timer for {minutes} minutes.",
        f"Start a {minutes} minute timer.",
        f"Remind me in {minutes} minutes.",
    )
    result = json.dumps({"status": "started"})
    answer = f"The timer is set for {minutes} minutes."
    return ToolUse(question, {"minutes": minutes}, result, answer)


def _search(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    word = subjects.word
    limit = rng.randint(1, 5)
    notes = [sentence(rng, lexicon) for _ in range(min(limit, 2))]
    question = choose(
        rng,
        f"Search my notes for {word} and show at most {limit}.",
        f"Find {limit} notes about {word}.",
    )
    found = f"I found {len(notes)} note{'s' if len(notes) > 1 else ''}: "
    arguments = {"query": word, "limit": limit}
    return ToolUse(question, arguments, json.dumps(notes), found + " ".join(notes))


def _set_light(rng: Random, lexicon: Lexicon, subjects: _Subjects) -> ToolUse:
    room = rng.choice(["kitchen", "bedroom", "office", "hall", "garage", "bathroom"])
    on = rng.random() < 0.5
    state = "on" if on else "off"
    return ToolUse(
        f"Turn the light in the {room} {state}.",
        {"room": room, "on": on},
        "ok",
        f"The light in the {room} is now {state}.",
    )


_USES: dict[str, Callable[[Random, Lexicon, _Subjects], ToolUse]] = {
    "get_weather": _get_weather,
    "get_time": _get_time,
    "calculator": _calculator,
    "lookup_word": _lookup_word,
    "read_file": _read_file,
    "write_file": _write_file,
    "send_message": _send_message,
    "set_timer": _set_timer,
    "search": _search,
    "set_light": _set_light,
}


def use_tool(rng: Random, lexicon: Lexicon, name: str) -> ToolUse:
    """A made-up use of the tool of that name."""
    subjects = _Subjects(
        city=rng.choice(CITIES),
        person=rng.choice(NAMES),
        word=rng.choice(lexicon.words),
        minutes=rng.randint(1, 60),
        path=rng.choice(PATHS),
    )
    return _USES[name](rng, lexicon, subjects)
