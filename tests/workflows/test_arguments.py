"""What a step's entry says that it was called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import Arguments, BeforeStep, read_entries
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


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

    assert await calling.start(None, run_id="r").run(App(Checkpoints(store))) == Success(None)
    entries = await read_entries(store, "r")
    return [one.arguments for one in entries if isinstance(one, BeforeStep) and one.arguments]


async def shown(store: MemoryStore, call: Effect[App, Any, int]) -> str:
    [arguments] = await arguments_of(store, call)
    return arguments.shown


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (take(1), "(first=1)"),
        (take(1, 2), "(first=1, items=(2,))"),
        (take(1, 2, 3, 4), "(first=1, items=(2, 3, 4))"),
        (take(1, 2, 3, flag=4), "(first=1, items=(2, 3), flag=4)"),
        (take(1, 2, more=3), "(first=1, items=(2,), options={'more': 3})"),
        (keep(), "()"),
        (keep(1, 3), "(first=1, second=3)"),
        (keep(second=3), "(second=3)"),
        (keep({"a": [1, (2,), ()]}, {3}), "(first={'a': [1, (2,), ()]}, second={3})"),
        (keep(frozenset({1}), set[int]()), "(first=frozenset({1}), second=set())"),
        (keep("x" * 500), f"(first='{'x' * 193}...)"),
        (keep([b"x" * 500]), f"(first=[b'{'x' * 191}...)"),
    ],
)
async def test_arguments_are_shown_by_the_parameters_that_took_them(
    store: MemoryStore, call: Effect[App, Any, int], expected: str
) -> None:
    assert await shown(store, call) == expected


SHOWN: list[int] = []


@dataclass(frozen=True)
class Row:
    number: int

    def __repr__(self) -> str:
        SHOWN.append(self.number)
        return f"row {self.number}"


@dataclass(frozen=True)
class Mute:
    number: int = field(default=1)

    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def test_of_a_long_argument_only_what_is_shown_is_made_text(store: MemoryStore) -> None:
    SHOWN.clear()
    rows = [Row(number) for number in range(5000)]

    text = await shown(store, keep({"rows": rows}))

    assert text.startswith("(first={'rows': [row 0, row 1, ")
    assert text.endswith("...)")
    assert len(text) < 210
    assert len(SHOWN) < 100


async def test_an_argument_that_cannot_be_shown_does_no_harm(store: MemoryStore) -> None:
    assert (
        await shown(store, keep([Mute()])) == "(first=[<Mute, whose __repr__ raised RuntimeError>])"
    )


async def test_the_digests_of_arguments_are_those_of_earlier_versions(store: MemoryStore) -> None:
    """Journals have them: a resume would take another digest for other arguments."""
    found = await arguments_of(store, take(1, 2), take(1, 2, 3, 4, 5), take(1, 2, flag=3), keep(1))

    assert [one.digest for one in found] == DIGESTS


DIGESTS = ["dacf9fa55a8d8b24", "196b3177ebaf1ab2", "405f2e2e0ea83a22", "774f958deec5b02d"]
