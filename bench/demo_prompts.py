"""Prompts for the demo model by kind, in the words that it and its drafter were trained on.

Raw text is what the drafter was not trained for: prose to continue, without the chat template.
"""

from __future__ import annotations

from typing import Any

from mtlqwen.chat import ChatTemplate
from mtlqwen.tokenizer import Tokenizer

RAW_TEXT = "raw text"
QUESTIONS = {
    "story": (
        "Tell me a story about a fox and a lantern.",
        "Tell me a story about a sailor and a key.",
        "Tell me a story about an owl and a mirror.",
        "Tell me a story about a baker and a kite.",
    ),
    "code": (
        "Write a Python function that checks if a number is prime.",
        "Write a Python function that computes the nth Fibonacci number.",
        "Write a Python function that counts the vowels of a string.",
        "Write a Python function that does a binary search.",
    ),
    "arithmetic": (
        "What is 478 + 256?",
        "What is 86 + 947?",
        "What is 17 * 6?",
        "Count from 5 to 30.",
    ),
    "tools": (
        "What is the weather in Paris?",
        "Set a timer for 12 minutes.",
        "What is the weather in Rome?",
        "Start a 40 minute timer.",
    ),
    "JSON": (
        "Turn this into JSON: Clara is 31 years old and lives in Oslo.",
        "Turn this into JSON: Leo is 52 years old and lives in Lima.",
        "Turn this into JSON: Nora is 19 years old and lives in Rome.",
        "Turn this into JSON: Hugo is 40 years old and lives in Paris.",
    ),
    "definitions": (
        'What does "ancient" mean?',
        'What does "lantern" mean?',
        'What does "harbour" mean?',
        'What does "curious" mean?',
    ),
    RAW_TEXT: (
        "Alice was beginning to get very tired of sitting by her sister",
        "The committee met on Tuesday to discuss the new railway, and",
        "It was late in the evening when the old man at last came home. He",
        "lantern (noun):",
    ),
}


def _function(name: str, description: str, parameter: str, kind: str) -> dict[str, Any]:
    properties = {parameter: {"type": kind, "description": parameter}}
    schema = {"type": "object", "properties": properties, "required": [parameter]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = (
    _function("get_weather", "Get the current weather of a city", "city", "string"),
    _function("set_timer", "Start a timer", "minutes", "integer"),
)


def prompts_by_kind(tokenizer: Tokenizer, template: ChatTemplate) -> dict[str, list[list[int]]]:
    """Token ids of every prompt."""

    def ids(kind: str, question: str) -> list[int]:
        if kind == RAW_TEXT:
            return tokenizer.encode(question)
        messages = [{"role": "user", "content": question}]
        return template.render(messages, tools=TOOLS if kind == "tools" else None).ids

    return {kind: [ids(kind, text) for text in texts] for kind, texts in QUESTIONS.items()}
