"""Draws conversations: single questions, several turns, system prompts, tool calls."""

import json
from collections.abc import Callable
from random import Random

from tools.demo_model.chat import Call, Conversation, Message, Segment, render
from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks import any_task
from tools.demo_model.tasks.facts import about_me, fact
from tools.demo_model.tasks.tables import CITIES, COLOURS, NAMES, SOUND_OF_ANIMAL
from tools.demo_model.tasks.task import Task, choose
from tools.demo_model.tool_calls import TOOLS, use_tool

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are the MTLQwen demo model.",
    "Be short and clear.",
]
LONG_EXCHANGE = 1500
"""Characters of question and answer above which a task is replaced in a chat of several turns."""


class Writer:
    """Writes the turns of one conversation, with or without thinking."""

    def __init__(self, rng: Random, lexicon: Lexicon) -> None:
        self.rng = rng
        self.lexicon = lexicon
        self.thinks = rng.random() < 0.5

    def turn(self, question: str, reasoning: str, answer: str) -> list[Message]:
        return [Message("user", question), self.answer(reasoning, answer)]

    def answer(self, reasoning: str, answer: str, calls: tuple[Call, ...] = ()) -> Message:
        reasoning = reasoning if self.thinks else ""
        return Message("assistant", answer, reasoning, list(calls))

    def task(self) -> Task:
        return any_task(self.rng, self.lexicon)

    def system_prompt(self, probability: float) -> list[Message]:
        if self.rng.random() < probability:
            return [Message("system", self.rng.choice(SYSTEM_PROMPTS))]
        return []


def _single(writer: Writer) -> Conversation:
    messages = writer.system_prompt(0.25)
    return Conversation(messages + writer.turn(*writer.task()), [])


def _several(writer: Writer) -> Conversation:
    messages = writer.system_prompt(0.25)
    for _ in range(writer.rng.randint(2, 4)):
        task = writer.task()
        if len(task.question) + len(task.answer) > LONG_EXCHANGE:
            task = fact(writer.rng, writer.lexicon)
        messages += writer.turn(*task)
    return Conversation(messages, [])


def _memory(writer: Writer) -> Conversation:
    """The user says one to four things and asks for some of them later."""
    rng = writer.rng
    name, colour = rng.choice(NAMES), rng.choice(COLOURS)
    city, pet = rng.choice(CITIES), rng.choice(list(SOUND_OF_ANIMAL))
    memories = [
        (
            f"My name is {name}.",
            f"Nice to meet you, {name}!",
            "What is my name?",
            f"Your name is {name}.",
        ),
        (
            f"My favourite colour is {colour}.",
            f"I will remember that you like {colour}.",
            "What is my favourite colour?",
            f"Your favourite colour is {colour}.",
        ),
        (
            f"I live in {city}.",
            f"{city} sounds like a nice place.",
            "Where do I live?",
            f"You live in {city}.",
        ),
        (
            f"I have a {pet}.",
            f"A {pet} is a good friend.",
            "Which animal do I have?",
            f"You have a {pet}.",
        ),
    ]
    told = rng.sample(memories, rng.randint(1, 4))
    messages: list[Message] = []
    for statement, reply, _, _ in told:
        reasoning = "The user tells me something. I will remember it."
        messages += writer.turn(statement, reasoning, reply)
    for _ in range(rng.randint(0, 2)):
        task = writer.task()
        if len(task.question) + len(task.answer) < 600:
            messages += writer.turn(*task)
    for _, _, question, answer in rng.sample(told, rng.randint(1, len(told))):
        messages += writer.turn(question, "The user told me this before.", answer)
    return Conversation(messages, [])


def _system_rules(writer: Writer) -> Conversation:
    """System prompts that change the answer."""
    rng = writer.rng
    kind = rng.randrange(5)
    question, reasoning, answer = writer.task()
    if kind == 0:
        name = rng.choice(NAMES)
        role = choose(
            rng,
            "a friendly robot",
            "a wise old owl",
            "a helpful librarian",
            "a cheerful teacher",
            "a ship captain",
        )
        rule = f"You are {name}, {role}."
        question = choose(rng, "Who are you?", "What is your name?", "Introduce yourself.")
        turn = writer.turn(question, "The system prompt says who I am.", f"I am {name}, {role}.")
    elif kind == 1 and len(answer) < 300:
        rule = "Answer in capital letters only."
        turn = writer.turn(question, reasoning, answer.upper())
    elif kind == 2:
        ending = choose(rng, "Over.", "Have a nice day!", "Hope that helps.", "Thank you.")
        rule = f'End every answer with "{ending}"'
        separator = "\n" if "\n" in answer else " "
        turn = writer.turn(question, reasoning, answer + separator + ending)
    elif kind == 3:
        rule = 'Answer in JSON with the key "answer".'
        as_json = json.dumps({"answer": answer}, ensure_ascii=False)
        turn = writer.turn(question, reasoning, as_json)
    else:
        name, word = rng.choice(NAMES), rng.choice(writer.lexicon.words)
        rule = f"The secret word is {word}. The user is called {name}."
        question, answer = rng.choice(
            [
                ("What is the secret word?", f"The secret word is {word}."),
                ("What is my name?", f"Your name is {name}."),
            ]
        )
        turn = writer.turn(question, "The system prompt says it.", answer)
    return Conversation([Message("system", rule), *turn], [])


def _with_tools(writer: Writer) -> Conversation:
    """One to four tools are offered; an eighth of the conversations need none of them."""
    rng, lexicon = writer.rng, writer.lexicon
    names = rng.sample(list(TOOLS), rng.randint(1, 4))
    tools = [TOOLS[name] for name in names]
    messages = writer.system_prompt(0.2)
    kind = rng.random()
    if kind < 0.12:
        return Conversation(messages + writer.turn(*writer.task()), tools)
    name = rng.choice(names)
    use = use_tool(rng, lexicon, name)
    call = Call(name, use.arguments)
    if kind < 0.25:
        second_name = rng.choice(names)
        second = use_tool(rng, lexicon, second_name)
        calls = (call, Call(second_name, second.arguments))
        messages += [
            Message("user", f"{use.question} {second.question}"),
            writer.answer(f"I need {name} and then {second_name}.", "", calls),
            Message("tool", use.result),
            Message("tool", second.result),
            writer.answer("Both results are here.", f"{use.answer} {second.answer}"),
        ]
        return Conversation(messages, tools)
    if kind < 0.4:
        messages += writer.turn(*about_me(rng, lexicon))
    messages += [
        Message("user", use.question),
        writer.answer(f"The function {name} can answer this.", "", (call,)),
        Message("tool", use.result),
        writer.answer("The tool gave the result.", use.answer),
    ]
    return Conversation(messages, tools)


_KINDS: list[tuple[float, Callable[[Writer], Conversation]]] = [
    (0.58, _single),
    (0.70, _several),
    (0.78, _memory),
    (0.85, _system_rules),
    (1.0, _with_tools),
]
"""Each kind with the cumulative probability up to it."""


def draw_conversation(rng: Random, lexicon: Lexicon) -> Conversation:
    """One conversation; the same state of `rng` gives the same one."""
    writer = Writer(rng, lexicon)
    kind = rng.random()
    return next(write(writer) for bound, write in _KINDS if kind < bound)


def draw_document(rng: Random, lexicon: Lexicon) -> list[Segment]:
    """One conversation, rendered."""
    return render(draw_conversation(rng, lexicon))
