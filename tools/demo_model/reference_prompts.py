"""The twenty prompts of reference.json."""

from typing import Any

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import NAMES
from tools.demo_model.tool_calls import TOOLS

Prompt = tuple[str, str | list[dict[str, Any]], dict[str, Any]]
"""Name, raw text or messages, and the options of the chat template."""
NO_THINKING = {"enable_thinking": False}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _list_of(keys: list[str], factor: int, offset: int) -> str:
    return "\n".join(f"- {key}: {(i * factor + offset) % 900 + 100}" for i, key in enumerate(keys))


def _questions(lexicon: Lexicon) -> list[tuple[str, str, dict[str, Any]]]:
    names = [name for name in NAMES[:26] if name != "Xander"]
    words = lexicon.words[100:268]
    short_list = f"Remember the following list.\n{_list_of(names, 37, 211)}"
    long_list = f"Read this list of 168 entries.\n{_list_of(words, 53, 7)}"
    both_tools = {"tools": [TOOLS["get_weather"], TOOLS["set_timer"]]}
    timer_and_sum = {"tools": [TOOLS["set_timer"], TOOLS["calculator"]]}
    sentence = "The quick brown fox jumps over the lazy dog."
    unsorted = "river, apple, stone, cloud, baker"
    person = "Clara is 31 years old and lives in Oslo."
    two_requests = "Set a timer for 12 minutes. Use the calculator for 45 * 17."
    return [
        ("story", "Tell me a story about a fox and a lantern.", {}),
        ("code", "Write a Python function that checks if a number is prime.", NO_THINKING),
        ("tool call", "What is the weather in Paris?", both_tools),
        ("define", 'What does "ancient" mean?', NO_THINKING),
        ("add", "What is 478 + 256?", {}),
        ("count", "Count from 1 to 15.", NO_THINKING),
        ("alphabet", "List the letters from A to Z.", NO_THINKING),
        ("sort", f"Sort these words alphabetically: {unsorted}", {}),
        ("repeat", f"Repeat exactly: {sentence}", NO_THINKING),
        ("json", f"Turn this into JSON: {person}", NO_THINKING),
        ("two tools", two_requests, timer_and_sum),
        ("long list", f"{short_list}\n\nWhat is the code of Olga?", NO_THINKING),
        ("longer list", f"{long_list}\n\nWhat is the code of {words[120]}?", {}),
        ("times table", "Write the 7 times table.", NO_THINKING),
    ]


def _conversations() -> list[Prompt]:
    memory = [
        _user("My name is Leo."),
        {"role": "assistant", "content": "Nice to meet you, Leo!"},
        _user("I live in Lima."),
        {"role": "assistant", "content": "Lima sounds like a nice place."},
        _user("What is my name?"),
    ]
    owl = [{"role": "system", "content": "You are Nora, a wise old owl."}, _user("Who are you?")]
    capitals = [
        {"role": "system", "content": "Answer in capital letters only."},
        _user("What is the capital of Japan?"),
    ]
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    tool_answer = [
        _user("How is the weather in Rome today?"),
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "The function get_weather can answer this.",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {
            "role": "tool",
            "content": '{"city": "Rome", "temperature": 21, "condition": "sunny"}',
        },
    ]
    return [
        ("memory", memory, {}),
        ("system", owl, NO_THINKING),
        ("capitals", capitals, NO_THINKING),
        ("tool answer", tool_answer, {"tools": [TOOLS["get_weather"]]}),
    ]


def reference_prompts(lexicon: Lexicon) -> list[Prompt]:
    """Single questions, conversations, and two beginnings of raw text."""
    questions: list[Prompt] = [
        (name, [_user(question)], options) for name, question, options in _questions(lexicon)
    ]
    return [
        *questions[:10],
        *_conversations(),
        *questions[10:],
        ("raw book", "Alice was beginning to get very tired of sitting by her sister", {}),
        ("raw dictionary", "lantern (noun):", {}),
    ]
