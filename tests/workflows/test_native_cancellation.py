"""Cancelled by asyncio itself, as a web framework does it, rather than by a scope of anyio's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    TimedOut,
    bracket,
    from_async,
    from_fn,
    never,
    par,
    pure,
    race,
    step,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    Interrupted,
    Lease,
    RunStatus,
    read_checkpoint,
    read_entries,
)
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App, Broken, app_on, note

pytestmark = pytest.mark.asyncio


@step
def first() -> Effect[object, str, str]:
    return pure("one")


async def wait(app: App) -> None:
    if app.world.is_broken:
        await asyncio.Event().wait()


@step
def second() -> Effect[App, str, str]:
    return from_async(wait).map(lambda _: "two")


@workflow
def both(_: None) -> Do[App, str, list[str]]:
    return [(yield from first()), (yield from second())]


async def test_a_cancelled_task_leaves_an_interrupted_run(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        app = app_on(store, failing=["waiting"])
        task = asyncio.create_task(both.start(None, run_id="r").run(app))
        async with asyncio.timeout(5):
            while not await _has_begun(store, "second"):
                await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        checkpoint = await read_checkpoint(store, "r")
        assert isinstance(checkpoint.state, Interrupted)
        assert (checkpoint.state.step, checkpoint.state.in_progress) == ("second", True)
        assert await both.resume("r").run(App(Checkpoints(store))) == Success(["one", "two"])


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "done"])
@pytest.mark.parametrize("cut", range(1, 5))
async def test_a_save_that_is_cut_off_is_neither_lost_nor_doubled(
    tmp_path: Path, cut: int, happened: bool
) -> None:
    """At each append in turn, the cancellation lands before or after the store has done it."""
    async with CutOff(tmp_path / "runs.db", cut, happened) as store:
        app = App(Checkpoints(store))
        task = asyncio.create_task(both.start(None, run_id="r").run(app))
        with pytest.raises(asyncio.CancelledError):
            await task

        is_accepted = bool(await read_entries(store, "r"))
        assert is_accepted or cut == 1
        if is_accepted:
            info = await store.info("r")
            assert info is not None
            assert info.lease is None, "the run can be taken up at once"
            assert info.summary.status in (RunStatus.INTERRUPTED, RunStatus.COMPLETED)
        again = both.start(None, run_id="r").run(App(Checkpoints(store)))
        assert await again == Success(["one", "two"])
        completed = (await read_checkpoint(store, "r")).completed_steps
        assert [done.step for done in completed] == ["first", "second"]


async def turns(app: App) -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def turning(action: str) -> Effect[App, str, None]:
    return from_async(turns).and_then(lambda _: from_fn(lambda app: app.world.done.append(action)))


@step(timeout=60)
def limited() -> Effect[App, str | TimedOut, None]:
    return turning("limited")


@workflow
def holding(_: None) -> Do[App, str | TimedOut, object]:
    yield from bracket(turning("acquire"), lambda _: turning("release"), lambda _: first())
    return (yield from limited())


async def test_nothing_that_has_ended_is_lost_in_whichever_turn_the_cancellation_comes() -> None:
    """What was acquired is released, and a step that was done is not done again."""
    turn, is_cancelled = 0, True
    while is_cancelled:
        turn += 1
        app = App(Checkpoints(MemoryStore()))
        task = asyncio.create_task(holding.start(None, run_id="r").run(app))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

        done = app.world.done
        assert done.count("acquire") == done.count("release"), turn
        if "limited" in done and await read_entries(app.checkpoints.store, "r"):
            await holding.resume("r").run(app)
            assert done.count("limited") == 1, turn
        is_cancelled = task.cancelled()
    assert turn > 20


async def _has_begun(store: SqliteStore, step: str) -> bool:
    entries = await read_entries(store, "r")
    return any(isinstance(entry, BeforeStep) and entry.step == step for entry in entries)


class CutOff(SqliteStore):
    """A store in which the task that asks for the n-th append is cancelled meanwhile."""

    def __init__(self, path: Path, cut: int, happened: bool) -> None:
        super().__init__(path)
        self._left = cut
        self._happened = happened

    async def append(self, lease: Lease, bodies: Sequence[bytes], **options: Any) -> None:
        self._left -= 1
        is_cut = self._left == 0
        if not is_cut or self._happened:
            await super().append(lease, bodies, **options)
        if is_cut:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)


@step
def slow_release() -> Effect[App, Broken, None]:
    return note("release").and_then(lambda _: from_async(lambda _: asyncio.sleep(0.05)))


def released_slowly(use: Effect[App, Any, Any]) -> Effect[App, Any, Any]:
    release = slow_release().and_then(lambda _: slow_release())
    return bracket(first(), lambda _: release, lambda _: use)


@pytest.mark.parametrize("operator", [par, race])
async def test_a_finalizer_of_a_parallel_branch_begins_no_step_after_the_cancellation(
    operator: Any,
) -> None:
    """It is left to the resume, as if a scope had cancelled the task."""

    @workflow
    def made(_: None) -> Do[App, Any, object]:
        beside = never() if app.world.is_broken else pure("beside").timeout(60)
        return (yield from operator(released_slowly(pure("used")), beside))

    app = app_on(MemoryStore(), failing=["nothing"])
    task = asyncio.create_task(made.start(None, run_id="r").run(app))
    while not app.world.done:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.world.done == ["release"]
    assert isinstance((await read_entries(app.checkpoints.store, "r"))[-1], Interrupted)
    app.world.recover()
    await made.resume("r").run(app)
    assert app.world.done == ["release", "release"]
