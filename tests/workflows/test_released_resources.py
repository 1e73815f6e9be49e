"""What was released is not used again, and what was acquired is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    acquiring,
    bracket,
    die,
    fail,
    from_async,
    from_fn,
    par,
    pure,
    race,
    step,
    workflow,
)
from effectflow.checkpoint import NotSerializable, RunStatus
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on
from tests.workflows.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    cut,
    journal,
    made_of,
    resume,
    start,
)

pytestmark = pytest.mark.anyio


def held(use: AnyEffect) -> AnyEffect:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


BAD_ENDS: dict[str, Callable[[], AnyEffect]] = {
    "defect": lambda: die(ValueError("bug")),
    "defect of an undeclared class": lambda: die(Crash("bug")),
    "failure between steps": lambda: fail(Broken("closed")),
    "failure after a step": lambda: act("use").and_then(lambda _: fail(Broken("closed"))),
    "failure that a map changed": lambda: act("bad").map_err(lambda error: Broken(f"{error}!")),
}


async def end_of(life: Any, made: AnyWorkflow, app: App) -> str:
    try:
        return str(await life(made, app))
    except Exception as defect:
        return f"defect {defect}".replace("tests.apps.Crash: ", "")


@pytest.mark.parametrize("bad", BAD_ENDS.values(), ids=BAD_ENDS.keys())
async def test_a_use_that_ended_badly_is_not_repeated_after_the_release(
    store: MemoryStore, bad: Callable[[], AnyEffect]
) -> None:
    """Its end is no step's, so that it would otherwise run again, and might succeed."""
    using = bad()

    made = made_of(lambda: held(using))

    first = await end_of(start, made, app_on(store, failing=["bad"]))
    lines = await journal(store)
    release = next(number for number, line in enumerate(lines, 1) if "release" in line)
    using = act("use again")
    for count in range(release, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await end_of(resume, made, app) == first, count
        assert app.world.done == ([] if count > release else ["release"]), count


@pytest.mark.parametrize("bad", BAD_ENDS.values(), ids=BAD_ENDS.keys())
async def test_before_the_release_began_the_use_is_repeated(
    store: MemoryStore, bad: Callable[[], AnyEffect]
) -> None:
    using = bad()

    made = made_of(lambda: held(using))

    await end_of(start, made, app_on(store, failing=["bad"]))
    shorter = await cut(store, 3)
    assert (await journal(shorter))[-1] == "C acquire"
    using = act("use again")
    app = app_on(shorter)
    assert await resume(made, app) == Success("use again")
    assert app.world.done == ["use again", "release"]


async def test_steps_after_a_use_that_is_not_repeated_keep_their_paths(store: MemoryStore) -> None:
    """The use had run a step and an operator of the names that the body uses afterwards."""

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        used = act("work").and_then(lambda _: par(pure(1), pure(2)))
        yield from held(used.and_then(lambda _: fail(Broken("closed")))).result()
        done = yield from par(act("a"), act("b"))
        return [*done, (yield from act("work")), (yield from act("last"))]

    await start(made, app_on(store, failing=["last"]))
    assert "B work#2" in await journal(store)
    assert "B par#2[0]/a" in await journal(store)
    app = app_on(store)
    assert await resume(made, app) == Success(["a", "b", "work", "last"])
    assert app.world.done == ["last"]


class Undeclared(Exception):
    """A failure whose class no annotation declares."""


async def test_a_use_with_an_undeclared_failure_ends_the_same(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        used = act("use").and_then(lambda _: fail(Undeclared("closed")))
        ended = yield from held(used).result()
        return [str(ended), (yield from act("use"))]

    expected = await start(made, app_on(store))
    lines = await journal(store)
    for count in range(lines.index("B bracket/release (failure)") + 1, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await resume(made, app) == expected, count
        assert "acquire" not in app.world.done


async def test_a_use_that_could_succeed_after_the_release_begins_nothing(
    store: MemoryStore,
) -> None:
    using: AnyEffect = fail(Undeclared("closed"))

    made = made_of(lambda: held(using))

    await start(made, app_on(store))
    for other in (lambda: act("use again"), lambda: pure("well"), lambda: fail(Undeclared("no"))):
        using = other()
        app = app_on(store)
        error = (await resume(made, app)).failure()
        assert isinstance(error, NotSerializable)
        assert "Declare its class" in str(error)
        assert app.world.done == []


async def test_several_resources_are_released_last_first_over_the_lives(
    store: MemoryStore,
) -> None:
    both = acquiring(act("open-1"), lambda _: act("close-1")).and_(
        act("open-2"), lambda _: act("close-2")
    )

    made = made_of(lambda: both.use(lambda *_: die(Crash("bug"))))

    await end_of(start, made, app_on(store))
    lines = await journal(store)
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        assert (await end_of(resume, made, app)) == "defect bug"
        closed = [name for name in app.world.done if name.startswith("close")]
        assert closed == sorted(closed, reverse=True), line
        done = " ".join(lines[:count]) + " ".join(app.world.done)
        assert "close-2" in done, line
        assert "close-1" in done, line


# Racers that wake in the same tick.


@pytest.mark.parametrize("is_resource", [False, True], ids=["step", "resource"])
async def test_a_racer_that_lost_in_the_same_tick_starts_no_step(*, is_resource: bool) -> None:
    resource: AnyEffect = bracket(act("loser"), lambda _: act("release"), pure)
    # Which of them wakes first is drawn on trio, so it is tried often.
    for _ in range(20):
        go, store = anyio.Event(), MemoryStore()
        waiting: AnyEffect = from_async(lambda _, go=go: go.wait())
        loser: AnyEffect = waiting.and_then(lambda _: resource if is_resource else act("loser"))

        @workflow
        def made(_: object, waiting: AnyEffect = waiting, loser: AnyEffect = loser) -> AnyEffect:
            return race([waiting, loser])

        async with anyio.create_task_group() as tasks:
            app = app_on(store)
            tasks.start_soon(made.start(None, run_id="r").run, app)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            go.set()
        lines = await journal(store)
        after = lines[lines.index("D race") :]
        # A resource whose acquisition began before the decision is released.
        assert "loser" not in " ".join(after[1:]) or "B race[1]/loser" in lines[: -len(after)]


# Stops at every await.


@dataclass
class Resource:
    """Something that outlives the processes."""

    is_held: bool = False
    problems: list[str] = field(default_factory=list[str])


def program(resource: Resource) -> AnyWorkflow:
    async def rest(_: object) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()

    @step
    def acquire() -> AnyEffect:
        def take(_: object) -> None:
            resource.is_held = True

        return from_async(rest).and_then(lambda _: from_fn(take))

    @step
    def use() -> AnyEffect:
        def check(_: object) -> None:
            if not resource.is_held:
                resource.problems.append("used after the release")

        return (
            from_fn(check).and_then(lambda _: from_async(rest)).and_then(lambda _: from_fn(check))
        )

    @step
    def release() -> AnyEffect:
        def give(_: object) -> None:
            resource.is_held = False

        return from_async(rest).and_then(lambda _: from_fn(give))

    @step
    def beside() -> AnyEffect:
        return from_async(rest).and_then(lambda _: from_async(rest)).map(lambda _: "beside")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        one: AnyEffect = bracket(acquire(), lambda _: release(), lambda _: use())
        both = yield from par(one, beside())
        return repr(both)

    return made


WAYS = [("asyncio", "scope"), ("asyncio", "task"), ("trio", "scope")]


@pytest.mark.parametrize(("anyio_backend", "way"), WAYS)
async def test_a_stop_at_any_await_leaves_a_run_that_a_resume_completes(way: str) -> None:
    for count in range(400):
        store, resource = MemoryStore(), Resource()
        made = program(resource)
        app = App(Checkpoints(store))
        await stopped_after(count, made, app, way)
        info = await store.info("r")
        if info is None:
            continue
        assert info.summary.status in (RunStatus.INTERRUPTED, RunStatus.COMPLETED), count
        assert await resume(made, app) == Success("(None, 'beside')"), count
        assert resource.problems == [], count
        assert not resource.is_held, count
        if info.summary.status is RunStatus.COMPLETED:
            return
    raise AssertionError("the run never completed")


async def stopped_after(count: int, made: AnyWorkflow, app: App, way: str) -> None:
    """Start the run and stop it from outside after this many turns of the event loop."""

    async def run() -> None:
        await made.start(None, run_id="r").run(app)

    if way == "task":
        task = asyncio.create_task(run())
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(count):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nothing_asked_for_is_a_defect(store: MemoryStore) -> None:
    async def stray(_: object) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    made = made_of(lambda: held(from_async(stray)))

    app = app_on(store)
    with pytest.raises(RuntimeError, match="nothing has cancelled it"):
        await start(made, app)
    assert app.world.done == ["acquire", "release"]
