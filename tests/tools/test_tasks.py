"""The task generator of the demo model: the same seed gives the same conversations."""

import random

import pytest

from tools.demo_model.conversations import draw_document
from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks import WEIGHT_OF_TASK

ENTRIES = [
    {
        "w": "word" + "abcdefghijklmnopqrst"[i % 20] + "abcdefghijklmnopqrst"[i // 20],
        "pos": "noun",
        "d": f"meaning number {i}",
        "c": 500 - i,
        "ex": f"an example of use {i}",
        "syn": "term",
        "hyper": "thing",
        "ant": "silence",
    }
    for i in range(400)
]


@pytest.fixture(scope="module")
def lexicon():
    return Lexicon(ENTRIES, ["The fox ran over the hill.", "She opened the old green door."])


@pytest.mark.parametrize("make", WEIGHT_OF_TASK, ids=lambda make: make.__name__)
def test_a_task_depends_on_the_seed_alone(make, lexicon):
    first, second = random.Random(1), random.Random(1)
    drawn = [make(first, lexicon) for _ in range(20)]
    assert drawn == [make(second, lexicon) for _ in range(20)]
    assert all(task.question and task.reasoning and task.answer for task in drawn)


def test_documents_close_every_turn_and_weigh_an_answer(lexicon):
    rng = random.Random(2)
    for _ in range(200):
        segments = draw_document(rng, lexicon)
        text = "".join(segment.text for segment in segments)
        assert text.count("<|im_start|>") == text.count("<|im_end|>")
        assert any(segment.weight == 1 for segment in segments)
