"""How much of a sweep a test makes: a sample by default, and all of it with `-m exhaustive`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any, TypeVar

import pytest

Point = TypeVar("Point")


def sample_or_all(name: str, sample: int, whole: int) -> pytest.MarkDecorator:
    """Parametrize a test with one number by default, and with the other in an exhaustive twin."""
    twin = pytest.param(whole, marks=pytest.mark.exhaustive)
    return pytest.mark.parametrize(name, [sample, twin], ids=["sample", "all"])


BACKENDS = ["asyncio", pytest.param("trio", marks=pytest.mark.sampled)]
"""The backends for one of the parameters of a test: all other cases on asyncio, and one on trio."""


EVERY = sample_or_all("every", 7, 1)
"""Whether to visit each point of a sweep, or each seventh: `visited(points, every)`."""


def examples(sample: int, whole: int) -> pytest.MarkDecorator:
    """Parametrize a test with the number of `examples` that Hypothesis draws."""
    return sample_or_all("examples", sample, whole)


def visited(points: Sequence[Point], every: int) -> list[Point]:
    """Return each n-th point of a sweep, and always the first and the last."""
    return [*points[:-1:every], points[-1]]


def in_turn(*, fixtures: Collection[str] = (), **axes: Collection[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with cases in which each value of each axis occurs.

    All combinations are exhaustive cases. The axes in `fixtures` are the parameters of fixtures. The name
    of an axis may be several, as in `"anyio_backend,way"`, and its values are tuples then.
    """
    sizes = [len(values) for values in axes.values()]
    sample = {tuple(turn % size for size in sizes) for turn in range(max(sizes))}
    return _some_of(axes, sample, fixtures)


def in_pairs(**axes: Collection[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with cases in which each two values of different axes meet.

    All combinations are exhaustive cases.
    """
    pairs = {case: set(combinations(enumerate(case), 2)) for case in _positions(axes)}
    missing = set[Any]().union(*pairs.values())
    sample: set[tuple[int, ...]] = set()
    while missing:
        best = max(pairs, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        sample.add(best)
    return _some_of(axes, sample)


def _positions(axes: Mapping[str, Collection[Any]]) -> list[tuple[int, ...]]:
    """Return all combinations, each as the positions of its values."""
    return list(product(*(range(len(values)) for values in axes.values())))


def _some_of(
    axes: Mapping[str, Collection[Any]],
    sample: Collection[tuple[int, ...]],
    fixtures: Collection[str] = (),
) -> pytest.MarkDecorator:
    parts = [
        values if "," in name else [(value,) for value in values] for name, values in axes.items()
    ]
    return pytest.mark.parametrize(
        ",".join(axes),
        [
            pytest.param(*chain(*case), marks=() if position in sample else pytest.mark.exhaustive)
            for position, case in zip(_positions(axes), product(*parts), strict=True)
        ],
        indirect=list(fixtures),
        ids=lambda value: getattr(value, "name", None),
    )
