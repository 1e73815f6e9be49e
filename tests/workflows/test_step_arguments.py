"""A step records its arguments by the parameters that took them."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, Effect, pure, step, workflow
from effectflow.checkpoint import Arguments, BeforeStep, read_entries
from effectflow.stores import MemoryStore
from tests.apps import App, app_on

pytestmark = pytest.mark.anyio


@step
def take(
    first: object, *items: object, flag: object = 0, **options: object
) -> Effect[App, Any, int]:
    return pure(len(items))


@step
def keep(first: object = 1, second: object = 2) -> Effect[App, Any, int]:
    return pure(1)


async def arguments_of(store: MemoryStore, *calls: Effect[App, Any, int]) -> list[Arguments]:
    @workflow
    def calling(_: None) -> Do[App, Any, None]:
        for call in calls:
            yield from call

    assert await calling.start(None, run_id="r").run(app_on(store)) == Success(None)
    entries = await read_entries(store, "r")
    return [one.arguments for one in entries if isinstance(one, BeforeStep) and one.arguments]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (take(1), "(first=1)"),
        (take(1, 2), "(first=1, items=(2,))"),
        (take(1, 2, 3, 4), "(first=1, items=(2, 3, 4))"),
        (take(1, 2, 3, flag=4), "(first=1, flag=4, items=(2, 3))"),
        (take(1, 2, more=3), "(first=1, items=(2,), options={'more': 3})"),
        (keep(), "()"),
        (keep(1, 3), "(first=1, second=3)"),
        (keep(second=3), "(second=3)"),
    ],
)
async def test_arguments_are_shown_by_the_parameters_that_took_them(
    store: MemoryStore, call: Effect[App, Any, int], expected: str
) -> None:
    [arguments] = await arguments_of(store, call)
    assert arguments.shown == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (take(1), take(first=1)),
        (keep(1, 3), keep(1, second=3)),
        (keep(1, 3), keep(second=3, first=1)),
    ],
)
async def test_an_argument_may_be_given_by_position_or_by_name(
    store: MemoryStore, one: Effect[App, Any, int], other: Effect[App, Any, int]
) -> None:
    first, second = await arguments_of(store, one, other)
    assert first == second
