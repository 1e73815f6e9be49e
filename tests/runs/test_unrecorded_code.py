"""Code between the steps decides again as it did, although its end is not recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    TimedOut,
    do,
    effect,
    par,
    pure,
    race,
    sleep,
    spawn,
    workflow,
)
from effectflow.checkpoint import find_run, read_entries
from effectflow.checkpoint.entries import ChildStarted
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, Slow
from tests.apps import App, app_on, both_backends
from tests.runs.journals import AnyEffect, act, hang, resume, start

pytestmark = pytest.mark.anyio


def deciding(decision: Callable[[], AnyEffect]) -> Any:
    """Return a workflow in which a step follows a decision. The step fails in the first life."""

    @workflow
    def made(_: object) -> Do[App, Any, str]:
        decided = yield from decision()
        yield from act("after")
        return str(decided)

    return made


async def decided_twice(made: Any, store: Any, *, resumed_on: Any = None) -> tuple[Any, list[str]]:
    """Return the result of a resume after a step that failed, and what it has done."""
    await start(made, app_on(store, failing=["after"]))
    app = app_on(store if resumed_on is None else resumed_on)
    return await resume(made, app), app.world.done


@do
async def many() -> str:
    """A body that lets other tasks run now and then."""
    for number in range(600):
        await pure(number)
    return "many"


@both_backends
async def test_a_body_that_breathes_wins_its_race_again(store: MemoryStore) -> None:
    made = deciding(lambda: race(hang("slow"), many()))
    assert await decided_twice(made, store) == (Success("many"), ["after"])


@both_backends
async def test_a_body_that_breathes_wins_before_the_finalizer_of_the_loser(
    store: MemoryStore,
) -> None:
    made = deciding(lambda: race(sleep(60).on_exit(act("release")), many()))
    assert await decided_twice(made, store) == (Success("many"), ["after"])


@both_backends
async def test_code_that_waits_only_in_a_later_life_wins_its_race_again(store: MemoryStore) -> None:
    @effect
    async def connect(app: App) -> str:
        if "after" not in app.world.failing:
            # Another process connects anew.
            await anyio.sleep(0.02)
        return "connected"

    made = deciding(lambda: race(hang("slow"), connect()))
    assert await decided_twice(made, store) == (Success("connected"), ["after"])


@workflow
def child(number: int) -> Do[App, Any, int]:
    yield from act("child")
    return number


@both_backends
async def test_a_spawn_that_lost_a_race_loses_it_again(store: MemoryStore) -> None:
    def decision() -> AnyEffect:
        return race(spawn(child, 5).map(lambda _: "spawned"), act("quick"))

    slow = FaultyStore(store, [Slow("create", 0.2)])
    made = deciding(decision)
    assert await decided_twice(made, slow, resumed_on=store) == (Success("quick"), ["after"])


@both_backends
async def test_a_spawn_that_took_too_long_takes_too_long_again(store: MemoryStore) -> None:
    def decision() -> AnyEffect:
        spawned = spawn(child, 5).map(lambda _: "spawned")
        return spawned.timeout(0.05).recover(TimedOut, lambda _: pure("late"))

    slow = FaultyStore(store, [Slow("create", 0.2)])
    made = deciding(decision)
    assert await decided_twice(made, slow, resumed_on=store) == (Success("late"), ["after"])


@both_backends
async def test_a_child_that_a_crash_has_prevented_is_created_by_the_resume(
    store: MemoryStore,
) -> None:
    made = deciding(lambda: par(spawn(child, 5).map(lambda _: "spawned"), act("beside")))
    faulty = FaultyStore(store, [Slow("create", 0.1), CrashPoint(1, False, "create")])
    with faulty.life():
        await start(made, App(Checkpoints(faulty)))
    [begun] = [one for one in await read_entries(store, "r") if isinstance(one, ChildStarted)]
    assert await find_run(store, begun.run_id) is None

    assert await resume(made, app_on(store)) == Success("('spawned', 'beside')")
    assert await find_run(store, begun.run_id) is not None
