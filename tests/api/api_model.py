"""Prompts for the API tests; what they ask of the model is no skill."""

from __future__ import annotations

from typing import Any

WORDS = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
)


def words(count: int, salt: int = 0) -> str:
    return " ".join(WORDS[(i * 7 + salt) % len(WORDS)] for i in range(count))


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
