"""The 29 kinds of templated task and how often each is drawn."""

from collections.abc import Callable
from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks import (
    code,
    facts,
    lists,
    numbers,
    reading,
    story,
    structured,
    words,
)
from tools.demo_model.tasks.task import Task

TaskMaker = Callable[[Random, Lexicon], Task]

WEIGHT_OF_TASK: dict[TaskMaker, float] = {
    words.define: 14,
    words.opposite: 2,
    words.synonym: 2,
    words.wider_class: 2,
    numbers.add: 5,
    numbers.subtract: 3,
    numbers.multiply: 3,
    numbers.divide: 1.5,
    numbers.compare: 2,
    numbers.number_in_words: 1.5,
    numbers.word_problem: 2,
    numbers.count: 3,
    words.alphabet: 2,
    lists.sort: 5,
    lists.reverse: 4,
    words.letters: 2,
    lists.length: 1.5,
    reading.repeat: 6,
    lists.pick: 3,
    facts.fact: 5,
    lists.group: 3,
    structured.table: 2,
    structured.json_text: 6,
    code.code: 6,
    story.story: 5,
    facts.about_me: 3,
    reading.quote: 3,
    reading.long_list: 8,
    reading.passage: 2,
}


def any_task(rng: Random, lexicon: Lexicon) -> Task:
    """One task, its kind drawn by weight."""
    makers, weights = list(WEIGHT_OF_TASK), list(WEIGHT_OF_TASK.values())
    return rng.choices(makers, weights)[0](rng, lexicon)
