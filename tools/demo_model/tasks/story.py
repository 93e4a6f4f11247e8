"""A little story of up to eight sentences."""

from random import Random

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.tasks.tables import COLOURS, NAMES
from tools.demo_model.tasks.task import Task, choose, with_article

PLACES = [
    "forest",
    "village",
    "castle",
    "garden",
    "river",
    "valley",
    "mountain",
    "harbour",
    "market",
    "island",
    "meadow",
    "cave",
]
THINGS = [
    "lantern",
    "key",
    "map",
    "ring",
    "book",
    "box",
    "bell",
    "coin",
    "feather",
    "mirror",
    "boat",
    "kite",
]
ANIMAL_HEROES = ["fox", "rabbit", "bear", "mouse", "owl", "dog", "cat"]
HEROES = [*ANIMAL_HEROES, "girl", "boy", "king", "queen", "sailor", "farmer", "baker"]
QUALITIES = [
    "little",
    "brave",
    "clever",
    "kind",
    "old",
    "young",
    "quiet",
    "hungry",
    "lonely",
    "happy",
]


def story(rng: Random, lexicon: Lexicon) -> Task:
    hero, quality, place = rng.choice(HEROES), rng.choice(QUALITIES), rng.choice(PLACES)
    thing, name, colour = rng.choice(THINGS), rng.choice(NAMES), rng.choice(COLOURS)
    owner = rng.choice([other for other in HEROES if other != hero])
    pronoun = "it" if hero in ANIMAL_HEROES else "she" if hero in ("girl", "queen") else "he"
    described, a_place = f"{with_article(quality)} {hero}", with_article(place)
    found = f"{with_article(colour)} {thing}"
    sentences = [
        choose(
            rng,
            f"Once upon a time there was {described} named {name} who lived near {a_place}.",
            f"Long ago, {described} called {name} lived in {a_place}.",
        ),
        choose(
            rng,
            f"One day {name} found {found} under a tree.",
            f"One morning {name} saw {found} by the road.",
        ),
        choose(
            rng,
            f'"Whose {thing} is this?" asked {name}, but nobody answered.',
            f'"What a fine {thing}!" said {name}.',
        ),
        choose(
            rng,
            f"So {pronoun} went to look for the owner.",
            f"So {pronoun} carried it home and put it on the table.",
        ),
        choose(
            rng,
            f"On the way {pronoun} met a {owner} who was very sad.",
            f"In the evening a {owner} knocked on the door.",
        ),
        f'"I have lost my {colour} {thing}," said the {owner}.',
        choose(
            rng,
            f"{name} smiled and gave the {thing} back.",
            f'"Here it is," said {name}, and gave it back at once.',
        ),
        choose(
            rng,
            f"The {owner} was so glad that they became friends and lived happily ever after.",
            f"From that day on the {hero} and the {owner} were the best of friends.",
        ),
    ]
    if rng.random() < 0.4:
        del sentences[2:5]
    a_hero = with_article(hero)
    question = choose(
        rng,
        f"Tell me a story about {a_hero} and {with_article(thing)}.",
        f"Write a short story about {described}.",
        f"Tell me a story about {a_hero} named {name}.",
        f"Please tell a short story with a {colour} {thing}.",
        "Tell me a story.",
    )
    return Task(question, f"I will tell a short story about {a_hero}.", " ".join(sentences))
