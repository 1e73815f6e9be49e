"""The work for each step does not depend on how many there are, in a first life and in a resume."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    ask,
    do,
    fail,
    par_traverse,
    pure,
    race,
    spawn,
    step,
    workflow,
)
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    is_down: bool


@step
def one(number: int) -> Effect[object, str, int]:
    return pure(number)


@step
def last() -> Do[App, str, None]:
    app = yield from ask(App)
    if app.is_down:
        yield from fail("down")


answer, other = Signal("answer", int), Signal("other", int)


@workflow
def child(number: int) -> Effect[object, str, int]:
    return pure(number)


@do
def received(units: int) -> Do[object, Any, None]:
    for _ in range(units):
        yield from answer.wait()


@do
def spawned(units: int) -> Do[object, Any, None]:
    for number in range(units):
        yield from spawn(child, number)


PROGRAMS: dict[str, Callable[[int], Effect[Any, Any, Any]]] = {
    "branches": lambda units: par_traverse(range(units), one),
    "races": lambda units: par_traverse(range(units), lambda number: race(one(number), one(0))),
    "messages": received,
    "spawned runs": spawned,
}


async def events_of(work: Awaitable[object]) -> int:
    """Return how many lines are executed, and functions called, until this ends."""
    events, before = 0, sys.gettrace()

    def note(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal events
        events += 1
        return note

    sys.settrace(note)
    try:
        await work
    finally:
        sys.settrace(before)
    return events


async def costs(kind: str, units: int) -> tuple[int, int]:
    """Return what the first life of a run costs that fails at its end, and its resume."""

    @workflow(name="w")
    def body() -> Do[App, Any, None]:
        yield from PROGRAMS[kind](units)
        yield from last()

    store = MemoryStore()
    async with store, Client(Checkpoints(store)) as client:
        handle = await client.submit(body, run_id="r")
        for number in range(units if kind == "messages" else 0):
            await handle.send(other, number)
            await handle.send(answer, number)
        broken = App(Checkpoints(store), is_down=True)
        whole = App(Checkpoints(store), is_down=False)
        first = await events_of(body.resume("r").run(broken))
        return first, await events_of(body.resume("r").run_or_raise(whole))


@pytest.mark.parametrize("kind", PROGRAMS)
async def test_what_a_step_costs_does_not_grow_with_their_number(kind: str) -> None:
    few, many = await costs(kind, 80), await costs(kind, 640)
    # A slow machine adds events, such as delayed saves. If 3 % of the first cost grew with the square of
    # the number, it would be 9.6 times as much.
    assert grown(few, many) < 8 * 1.2


def grown(few: tuple[int, int], many: tuple[int, int]) -> float:
    return max(after / before for before, after in zip(few, many, strict=True))
