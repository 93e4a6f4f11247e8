"""Arithmetic, comparing and counting."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import NAMES
from tools.demo_model.tasks.task import Task, capitalize, choose, in_words


def _number(rng: Random) -> int:
    size = rng.random()
    if size < 0.35:
        return rng.randint(0, 12)
    return rng.randint(0, 99) if size < 0.8 else rng.randint(100, 999)


def _column_addition(a: int, b: int) -> str:
    """The written addition of two numbers, digit by digit from the right."""
    width = max(len(str(a)), len(str(b)))
    carry = 0
    steps = []
    for x, y in zip(reversed(f"{a:0{width}}"), reversed(f"{b:0{width}}"), strict=True):
        digit_sum = int(x) + int(y) + carry
        carried = f" + {carry}" if carry else ""
        step = f"{x} + {y}{carried} = {digit_sum}, write {digit_sum % 10}"
        carry = digit_sum // 10
        steps.append(step + (", carry 1" if carry else ""))
    if carry:
        steps.append("write the carry 1")
    return ". ".join(steps) + "."


def add(rng: Random, lexicon: Lexicon) -> Task:
    a, b = _number(rng), _number(rng)
    question = choose(
        rng,
        f"What is {a} + {b}?",
        f"{a} + {b} = ?",
        f"Add {a} and {b}.",
        f"What is {a} plus {b}?",
        f"Compute {a} + {b}.",
        f"Calculate {a}+{b}",
    )
    reasoning = f"Add {a} and {b} from the right. {_column_addition(a, b)} The sum is {a + b}."
    return Task(question, reasoning, choose(rng, f"{a} + {b} = {a + b}"))


def subtract(rng: Random, lexicon: Lexicon) -> Task:
    a, b = _number(rng), _number(rng)
    if a < b:
        a, b = b, a
    question = choose(
        rng,
        f"What is {a} - {b}?",
        f"{a} - {b} = ?",
        f"Subtract {b} from {a}.",
        f"What is {a} minus {b}?",
        f"Calculate {a}-{b}",
    )
    reasoning = f"Take {b} away from {a}. {b} + {a - b} = {a}, so the difference is {a - b}."
    return Task(question, reasoning, f"{a} - {b} = {a - b}")


def multiply(rng: Random, lexicon: Lexicon) -> Task:
    if rng.random() < 0.7:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
    else:
        a, b = rng.randint(11, 99), rng.randint(2, 9)
    reasoning = f"{a} times {b} is {a * b}."
    if a > 12:
        tens, ones = a // 10 * 10, a % 10
        reasoning = (
            f"Split {a} into {tens} and {ones}. {tens} times {b} is {tens * b}. "
            f"{ones} times {b} is {ones * b}. {tens * b} + {ones * b} = {a * b}."
        )
    question = choose(
        rng,
        f"What is {a} times {b}?",
        f"{a} * {b} = ?",
        f"Multiply {a} by {b}.",
        f"What is {a} x {b}?",
        f"Compute {a} * {b}.",
    )
    return Task(question, reasoning, f"{a} * {b} = {a * b}")


def divide(rng: Random, lexicon: Lexicon) -> Task:
    divisor, quotient = rng.randint(1, 12), rng.randint(0, 12)
    product = divisor * quotient
    question = choose(
        rng,
        f"What is {product} divided by {divisor}?",
        f"{product} / {divisor} = ?",
        f"Divide {product} by {divisor}.",
    )
    return Task(
        question,
        f"{divisor} times {quotient} is {product}.",
        f"{product} / {divisor} = {quotient}",
    )


def compare(rng: Random, lexicon: Lexicon) -> Task:
    a, b = _number(rng), _number(rng)
    if a == b:
        b += 1
    kind = rng.random()
    if kind < 0.5:
        question = choose(
            rng, f"Which is larger, {a} or {b}?", f"Which number is bigger: {a} or {b}?"
        )
        larger, smaller = max(a, b), min(a, b)
        reasoning = f"Compare {a} and {b}. {larger} is larger."
        return Task(question, reasoning, f"{larger} is larger than {smaller}.")
    if kind < 0.75:
        question = choose(rng, f"Is {a} even or odd?", f"Is the number {a} odd or even?")
        reasoning = f"The last digit of {a} is {a % 10}."
        return Task(question, reasoning, f"{a} is {'odd' if a % 2 else 'even'}.")
    question = choose(rng, f"Is {a} greater than {b}?", f"Is {a} more than {b}?")
    verdict = f"Yes, {a} is" if a > b else f"No, {a} is not"
    return Task(question, f"Compare {a} and {b}.", f"{verdict} greater than {b}.")


def number_in_words(rng: Random, lexicon: Lexicon) -> Task:
    number = rng.randint(0, 999)
    words = in_words(number)
    if rng.random() < 0.5:
        question = choose(
            rng, f"Write {number} in words.", f"How do you spell the number {number}?"
        )
        return Task(question, f"I should write {number} as words.", capitalize(words) + ".")
    question = choose(rng, f"Write {words} in digits.", f"Which number is {words}?")
    return Task(question, "I should write the number in digits.", f"{number}")


def word_problem(rng: Random, lexicon: Lexicon) -> Task:
    name = rng.choice(NAMES)
    things = rng.choice(
        [
            "apples",
            "books",
            "coins",
            "pens",
            "cards",
            "shells",
            "stamps",
            "eggs",
            "marbles",
            "cookies",
        ]
    )
    a, b = rng.randint(2, 30), rng.randint(1, 20)
    if rng.random() < 0.5:
        return Task(
            f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
            f"{name} starts with {a} and gets {b} more. {a} + {b} = {a + b}.",
            f"{name} has {a + b} {things} now.",
        )
    a, b = max(a, b), min(a, b)
    return Task(
        f"{name} had {a} {things} and gave away {b}. How many {things} are left?",
        f"{name} starts with {a} and gives away {b}. {a} - {b} = {a - b}.",
        f"{name} has {a - b} {things} left.",
    )


def count(rng: Random, lexicon: Lexicon) -> Task:
    kind = rng.random()
    if kind < 0.5:
        first = rng.randint(0, 60)
        numbers = list(range(first, first + rng.randint(4, 20)))
        last = numbers[-1]
        question = choose(
            rng, f"Count from {first} to {last}.", f"List the numbers from {first} to {last}."
        )
        reasoning = f"I start at {first} and stop at {last}."
    elif kind < 0.75:
        first = rng.randint(10, 60)
        numbers = list(range(first, first - rng.randint(4, 10), -1))
        last = numbers[-1]
        question = choose(
            rng, f"Count down from {first} to {last}.", f"Count backwards from {first} to {last}."
        )
        reasoning = f"I go down from {first} to {last}."
    else:
        step = rng.randint(2, 10)
        numbers = [step * i for i in range(1, rng.randint(4, 10) + 1)]
        last = numbers[-1]
        question = choose(
            rng, f"Count by {step} up to {last}.", f"List the multiples of {step} up to {last}."
        )
        reasoning = f"Each number is {step} more than the last."
    return Task(question, reasoning, ", ".join(map(str, numbers)))
