"""How much of a sweep a test makes: a sample by default, and all of it with `-m exhaustive`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

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
