"""Short Python functions."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.task import Task, capitalize, choose

EXPRESSIONS = [
    ("add", "a, b", "a + b", "adds two numbers"),
    ("subtract", "a, b", "a - b", "subtracts two numbers"),
    ("multiply", "a, b", "a * b", "multiplies two numbers"),
    ("square", "x", "x * x", "squares a number"),
    ("double", "x", "2 * x", "doubles a number"),
    ("is_even", "n", "n % 2 == 0", "checks if a number is even"),
    ("is_odd", "n", "n % 2 == 1", "checks if a number is odd"),
    ("maximum", "a, b", "a if a > b else b", "returns the larger of two numbers"),
    ("minimum", "a, b", "a if a < b else b", "returns the smaller of two numbers"),
    ("reverse", "s", "s[::-1]", "reverses a string"),
    ("shout", "s", "s.upper()", "changes a string to upper case"),
    ("first", "items", "items[0]", "returns the first item of a list"),
    ("last", "items", "items[-1]", "returns the last item of a list"),
    ("total", "items", "sum(items)", "sums a list"),
    ("average", "items", "sum(items) / len(items)", "returns the average of a list"),
    ("count_words", "text", "len(text.split())", "counts the words of a text"),
    ("unique", "items", "sorted(set(items))", "returns the unique items of a list"),
    ("is_empty", "items", "len(items) == 0", "checks if a list is empty"),
    ("greet", "name", '"Hello, " + name + "!"', "greets a person"),
]
"""Functions of one return: name, parameters, expression, what it does."""

BODIES = {
    "computes the factorial of a number": """\
def factorial(n):
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result""",
    "computes the nth Fibonacci number": """\
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a""",
    "checks if a number is prime": """\
def is_prime(n):
    if n < 2:
        return False
    for i in range(2, int(n ** 0.5) + 1):
        if n % i == 0:
            return False
    return True""",
    "counts the vowels of a string": """\
def count_vowels(s):
    count = 0
    for c in s.lower():
        if c in "aeiou":
            count += 1
    return count""",
    "finds the greatest common divisor": """\
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a""",
    "checks if a string is a palindrome": """\
def is_palindrome(s):
    s = s.lower()
    return s == s[::-1]""",
    "prints the numbers from 1 to n": """\
def print_numbers(n):
    for i in range(1, n + 1):
        print(i)""",
    "counts the items of a list": """\
def count_items(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts""",
    "sorts a list with bubble sort": """\
def bubble_sort(items):
    n = len(items)
    for i in range(n):
        for j in range(n - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items""",
    "plays FizzBuzz": """\
def fizzbuzz(n):
    for i in range(1, n + 1):
        if i % 15 == 0:
            print("FizzBuzz")
        elif i % 3 == 0:
            print("Fizz")
        elif i % 5 == 0:
            print("Buzz")
        else:
            print(i)""",
    "does a binary search": """\
def binary_search(items, target):
    low, high = 0, len(items) - 1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] == target:
            return mid
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid - 1
    return -1""",
    "reads a file": """\
def read_file(path):
    with open(path, encoding="utf-8") as f:
        return f.read()""",
}


def code(rng: Random, lexicon: Lexicon) -> Task:
    if rng.random() < 0.5:
        name, parameters, expression, purpose = rng.choice(EXPRESSIONS)
        docstring = ""
        if rng.random() < 0.3:
            docstring = f'    """{capitalize(purpose)}."""\n'
            purpose += ", with a docstring"
        body = f"def {name}({parameters}):\n{docstring}    return {expression}"
    else:
        purpose = rng.choice(list(BODIES))
        body = BODIES[purpose]
    request = choose(
        rng,
        "Write a Python function that ",
        "Write a function in Python that ",
        "Show me Python code that ",
        "I need a Python function that ",
    )
    return Task(f"{request}{purpose}.", "A short function is enough.", f"```python\n{body}\n```")
