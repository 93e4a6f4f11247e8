"""Closed facts, and what the model says about itself."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import CAPITAL_OF_COUNTRY, DAYS, MONTHS, SOUND_OF_ANIMAL
from tools.demo_model.tasks.task import Task, choose


def fact(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    if kind < 0.4:
        return _capital(rng, asks_country=kind >= 0.3)
    if kind < 0.55:
        return _neighbour(rng, "day", DAYS, "I think of the days of the week in order.")
    if kind < 0.7:
        return _neighbour(rng, "month", MONTHS, "I think of the months in order.")
    if kind < 0.8:
        animal = rng.choice(list(SOUND_OF_ANIMAL))
        question = choose(rng, f"What sound does a {animal} make?", f"What does a {animal} say?")
        article = "An" if animal == "owl" else "A"
        answer = f"{article} {animal} makes a {SOUND_OF_ANIMAL[animal]} sound."
        return Task(question, f"I think of the sound of a {animal}.", answer)
    if kind < 0.88:
        question = choose(
            rng,
            "Name the days of the week.",
            "List the days of the week.",
            "What are the seven days of the week?",
        )
        return Task(question, "There are seven days.", ", ".join(DAYS))
    if kind < 0.95:
        question = choose(rng, "Name the months of the year.", "List the twelve months.")
        return Task(question, "There are twelve months.", ", ".join(MONTHS))
    return Task(
        "How many days are in a week?", "I count the days.", "There are seven days in a week."
    )


def _capital(rng: Random, asks_country: bool) -> Task:
    country = rng.choice(list(CAPITAL_OF_COUNTRY))
    capital = CAPITAL_OF_COUNTRY[country]
    if asks_country:
        return Task(
            f"{capital} is the capital of which country?",
            f"I need the country of {capital}.",
            f"{capital} is the capital of {country}.",
        )
    question = choose(
        rng,
        f"What is the capital of {country}?",
        f"Name the capital of {country}.",
        f"capital of {country}?",
    )
    return Task(
        question,
        "The user asks for a capital city.",
        f"The capital of {country} is {capital}.",
    )


def _neighbour(rng: Random, unit: str, names: list[str], reasoning: str) -> Task:
    i = rng.randrange(len(names))
    step = rng.choice([1, -1])
    side = "after" if step > 0 else "before"
    return Task(
        f"Which {unit} comes {side} {names[i]}?",
        reasoning,
        f"{names[(i + step) % len(names)]} comes {side} {names[i]}.",
    )


def about_me(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    if kind < 0.35:
        questions = ("Who are you?", "What are you?", "What is your name?", "Introduce yourself.")
        return Task(
            choose(rng, *questions, "who are you"),
            "The user asks who I am.",
            "I am the MTLQwen demo model, a tiny language model with about ten million parameters.",
        )
    if kind < 0.5:
        return Task(
            choose(rng, "What can you do?", "How can you help me?", "What are you good at?"),
            "I list what I can do.",
            "I can define common words, do small sums, sort and repeat words, find things in a "
            "list, write JSON and call simple tools. I am tiny, so please check my answers.",
        )
    if kind < 0.75:
        greetings = ("Hello!", "Hi", "Hello", "Hi there!", "Good morning!", "Hey")
        return Task(
            choose(rng, *greetings), "The user greets me.", "Hello! How can I help you today?"
        )
    if kind < 0.85:
        thanks = choose(rng, "Thank you!", "Thanks.", "Thanks a lot!")
        return Task(thanks, "The user thanks me.", "You are welcome!")
    if kind < 0.92:
        goodbye = choose(rng, "Goodbye!", "Bye.", "See you later.")
        return Task(goodbye, "The user says goodbye.", "Goodbye! Have a nice day.")
    return Task(
        choose(rng, "How are you?", "How are you today?"),
        "A friendly question.",
        "I am fine, thank you. How can I help you?",
    )
