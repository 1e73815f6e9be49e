"""How much of a sweep a test makes: a sample by default, and all of it with `-m exhaustive`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest

Point = TypeVar("Point")


def sample_or_all(name: str, sample: int, whole: int) -> pytest.MarkDecorator:
    """Parametrize a test with one number by default, and with the other in an exhaustive twin."""
    twin = pytest.param(whole, marks=pytest.mark.exhaustive)
    return pytest.mark.parametrize(name, [sample, twin], ids=["sample", "all"])


EVERY = sample_or_all("every", 7, 1)
"""Whether to visit each point of a sweep, or each seventh: `visited(points, every)`."""


def examples(sample: int, whole: int) -> pytest.MarkDecorator:
    """Parametrize a test with the number of `examples` that Hypothesis draws."""
    return sample_or_all("examples", sample, whole)


def visited(points: Sequence[Point], every: int) -> list[Point]:
    """Return each n-th point of a sweep, and always the first and the last."""
    return [*points[:-1:every], points[-1]]


def in_pairs(**axes: Collection[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with cases in which each two values of different axes meet.

    All combinations are exhaustive cases.
    """
    cases = list(product(*axes.values()))
    choices = list(product(*(range(len(values)) for values in axes.values())))
    pairs = {choice: set(combinations(enumerate(choice), 2)) for choice in choices}
    missing = set[Any]().union(*pairs.values())
    sample: set[tuple[int, ...]] = set()
    while missing:
        best = max(choices, key=lambda choice: len(pairs[choice] & missing))
        missing -= pairs[best]
        sample.add(best)
    return pytest.mark.parametrize(
        list(axes),
        [
            pytest.param(*case, marks=() if choice in sample else pytest.mark.exhaustive)
            for case, choice in zip(cases, choices, strict=True)
        ],
    )
