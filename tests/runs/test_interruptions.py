"""A run that is stopped from outside at any moment can be resumed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    TimedOut,
    Workflow,
    bracket,
    compensate,
    fail,
    par,
    par_traverse,
    pure,
    race,
    saga,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    BeforeStep,
    Completed,
    Interrupted,
    Lease,
    RunInfo,
    RunStatus,
    find_run,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.effects import from_async, from_fn, never
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App, Broken, app_on, both_backends, note
from tests.runs.journals import AnyEffect, act, in_turn, made_of
from tests.sweeps import sample_or_all


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@step
def yielding(name: str) -> Effect[App, str, str]:
    """Stops at once when it is told to."""
    return from_async(lambda _: turns(10)).map(lambda _: name)


async def unstoppable(_: App) -> None:
    """As what runs in a thread: it goes on for longer than others take to stop."""
    with anyio.CancelScope(shield=True):
        await turns(60)


@step
def stubborn(name: str) -> Effect[App, str, str]:
    return from_async(unstoppable).map(lambda _: name)


@step
def stubborn_and_failing(name: str) -> Effect[App, str, str]:
    return from_async(unstoppable).and_then(lambda _: fail(name))


@step
def endless() -> Effect[App, str, None]:
    return from_async(lambda _: anyio.sleep_forever())


@workflow
def completing(name: str) -> Do[App, str, object]:
    first = yield from yielding(name)
    beside = yield from par(yielding("b"), stubborn("c"))
    return [first, beside, (yield from yielding("d"))]


@workflow
def handling(_: str) -> Do[App, str, object]:
    failing = stubborn_and_failing("no").or_else(pure)
    beside = yield from par(yielding("b"), failing, stubborn("c"))
    return [beside, (yield from yielding("d"))]


@pytest.mark.anyio
@both_backends
@pytest.mark.parametrize("made", [completing, handling])
async def test_an_interruption_at_any_moment_can_be_resumed(
    store: MemoryStore, made: Workflow[App, str, str, object]
) -> None:
    app = App(Checkpoints(store))
    whole = await made.start("a").run(app)
    stopped = 0
    for count in range(1000):
        run_id = f"r{count}"
        async with anyio.create_task_group() as group:
            group.start_soon(made.start("a", run_id=run_id).run, app)
            await turns(count)
            group.cancel_scope.cancel()
        info = await find_run(store, run_id)
        if info is None:
            continue
        assert (await verify_run(store, run_id)).problem is None, count
        checkpoint = await read_checkpoint(store, run_id)
        assert checkpoint.status is info.summary.status
        assert repr(await made.resume(run_id).run(app)) == repr(whole), count
        if info.summary.status is RunStatus.COMPLETED:
            break
        stopped += 1
    else:
        raise AssertionError("it never got to its end")
    assert stopped > 20


@pytest.mark.anyio
@both_backends
async def test_a_step_that_ends_while_the_run_is_stopped_does_not_hide_which_was_cut_off(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    began = anyio.Event()

    @step
    def waiting() -> Effect[App, str, None]:
        return from_fn(lambda _: began.set()).and_then(
            lambda _: from_async(lambda _: anyio.sleep_forever())
        )

    made = made_of(lambda: par(stubborn("c"), waiting()))

    await stop_when(began, made.start(None, run_id="r"), app)

    *_, completed, interrupted = await read_entries(store, "r")
    assert isinstance(completed, Completed)
    assert isinstance(interrupted, Interrupted)
    plan = (await made.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("par[1]/waiting",), ("par[1]/waiting",))


@pytest.mark.anyio
@both_backends
@pytest.mark.parametrize(("after", "step"), [(yielding("b"), "yielding"), (pure("b"), None)])
async def test_a_step_that_timed_out_before_the_run_was_stopped_is_not_said_to_be_cut_off(
    store: MemoryStore, after: Effect[App, Any, str], step: str | None
) -> None:
    app = App(Checkpoints(store))
    began = anyio.Event()

    made = made_of(
        lambda: in_turn(
            endless().timeout(0.01).result(),
            after,
            from_fn(lambda _: began.set()),
            from_async(lambda _: anyio.sleep_forever()),
        )
    )

    await stop_when(began, made.start(None, run_id="r"), app)

    state = (await read_checkpoint(store, "r")).state
    assert isinstance(state, Interrupted)
    assert (state.step, state.in_progress) == (step, False)


async def stop_when(began: anyio.Event, effect: Effect[App, Any, Any], app: App) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(effect.run, app)
        await began.wait()
        await turns(5)
        group.cancel_scope.cancel()


# Cancelled by asyncio itself, as a web framework does it, and not by a scope of anyio.


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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
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

        # A run that was created has not begun, and is deleted again.
        is_accepted = bool(await read_entries(store, "r"))
        assert is_accepted == (cut > 1)
        if is_accepted:
            info = await find_run(store, "r")
            assert info is not None
            assert info.lease is None, "the run can be taken up at once"
            assert info.summary.status in (RunStatus.INTERRUPTED, RunStatus.COMPLETED)
        again = both.start(None, run_id="r").run(App(Checkpoints(store)))
        assert await again == Success(["one", "two"])
        completed = (await read_checkpoint(store, "r")).completed_steps
        assert [done.step for done in completed] == ["first", "second"]


def turning(action: str) -> Effect[App, str, None]:
    noted: Effect[App, str, None] = from_fn(lambda app: app.world.done.append(action))
    return from_async(lambda _: turns(3)).within(App).and_then(lambda _: noted)


@step(timeout=60)
def limited() -> Effect[App, str | TimedOut, None]:
    return turning("limited")


@workflow
def holding(_: None) -> Do[App, str | TimedOut, object]:
    yield from bracket(turning("acquire"), lambda _: turning("release"), lambda _: first())
    return (yield from limited())


@pytest.mark.asyncio
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
    assert turn > 15


async def _has_begun(store: SqliteStore, step: str) -> bool:
    entries = await read_entries(store, "r")
    return any(isinstance(entry, BeforeStep) and entry.step == step for entry in entries)


class CutOff(SqliteStore):
    """A store in which the task that asks for the n-th append is cancelled meanwhile."""

    def __init__(self, path: Path, cut: int, happened: bool) -> None:
        super().__init__(path)
        self._left = cut
        self._happened = happened

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        return await self._cut(partial(super().create, run_id, bodies, **options))

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self._cut(partial(super().append, lease, batch))

    async def _cut(self, write: Callable[[], Awaitable[Any]]) -> Any:
        self._left -= 1
        is_cut = self._left == 0
        written = await write() if not is_cut or self._happened else None
        if is_cut:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return written


@step
def slow_release() -> Effect[App, Broken, None]:
    return note("release").and_then(lambda _: from_async(lambda _: asyncio.sleep(0.05)))


def released_slowly(use: Effect[App, Any, Any]) -> Effect[App, Any, Any]:
    release = slow_release().and_then(lambda _: slow_release())
    return bracket(first(), lambda _: release, lambda _: use)


@pytest.mark.asyncio
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


def item(name: str) -> AnyEffect:
    return bracket(act(f"open {name}"), lambda _: act(f"close {name}"), lambda _: act(name))


# A resume may find another winner, so the result is the same.
RACE = race([item("a"), in_turn(act("x"), act("y"))]).map(lambda _: "over")
PROGRAMS: dict[str, AnyEffect] = {
    "par": par(item("a"), par(item("b"), act("c"))).map(repr),
    "traverse": par_traverse("abc", item, limit=2).map(repr),
    "race": in_turn(RACE, act("after")),
    "finalizer": RACE.on_exit(act("after")),
    "saga": saga(in_turn(compensate(act("book"), lambda _: act("cancel")), RACE, act("after"))),
}


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@sample_or_all("every", 7, 1)
@pytest.mark.parametrize("chosen", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
async def test_a_run_ends_if_only_one_of_its_branches_is_cancelled(
    program: AnyEffect, chosen: int, every: int
) -> None:
    made = made_of(lambda: program)
    expected = await made.start(None).run(app_on(MemoryStore()))
    tasks: list[asyncio.Task[Any]] = []

    def create(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.Task(work, loop=loop, **options))
        return tasks[-1]

    asyncio.get_running_loop().set_task_factory(create)
    interrupted = 0
    for turn in range(0, 40, every):
        tasks.clear()
        app = app_on(MemoryStore())
        running = asyncio.create_task(made.start(None, run_id="r").run(app))
        for _ in range(turn):
            await asyncio.sleep(0)
        branches = [task for task in tasks if "Children" in task.get_name() and not task.done()]
        if branches:
            branches[chosen].cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([running])
        interrupted += running.cancelled()
        assert running.cancelled() or running.result() == expected, turn
        if await find_run(app.checkpoints.store, "r") is not None:
            assert await made.resume("r").run(app_on(app.checkpoints.store)) == expected, turn
    assert interrupted
    # Now, while the warning about coroutines of tasks that never began is ignored.
    tasks.clear()
    branches = []
    gc.collect()
