"""A run that is stopped from outside leaves the steps of its finalizers to the resume."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Result, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    MapReduce,
    StateGraph,
    TimedOut,
    Workflow,
    acquiring,
    bracket,
    fail,
    from_async,
    from_fn,
    now,
    par,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import Completed, Interrupted, RunStatus, read_checkpoint, read_entries
from effectflow.effects.clock import SystemClock
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio

AnyEffect = Effect[Any, Any, Any]
AnyWorkflow = Workflow[Any, Any, str, Any]

everywhere = pytest.mark.parametrize(
    ("anyio_backend", "way"), [("asyncio", "scope"), ("asyncio", "task"), ("trio", "scope")]
)


@dataclass
class World:
    """What the steps act on. It outlives the process, as they do not."""

    held: set[str] = field(default_factory=set[str])
    done: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])


class Limits(SystemClock):
    """Its timeouts of less than a minute strike when they are told to."""

    def __init__(self) -> None:
        self._running: list[anyio.CancelScope] = []

    def move_on_after(self, seconds: float) -> anyio.CancelScope:
        limit = anyio.CancelScope()
        if seconds < 60:
            self._running.append(limit)
        return limit

    def strike(self) -> None:
        for limit in self._running:
            limit.cancel()


@dataclass
class App:
    """One life of a process. It is to be stopped once the step `stop_in` has begun."""

    checkpoints: Checkpoints
    world: World = field(default_factory=World)
    stop_in: str | None = None
    began: anyio.Event = field(default_factory=anyio.Event)
    waits: anyio.Event = field(default_factory=anyio.Event)
    clock: Limits = field(default_factory=Limits)

    async def run(self, effect: AnyEffect, **options: Any) -> Result[Any, Any]:
        return await effect.run(self, clock=self.clock, **options)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


def acting(name: str, act: Callable[[World], object]) -> Effect[App, Any, str]:
    async def run(app: App) -> str:
        app.world.done.append(name)
        if app.stop_in == name:
            app.began.set()
        # Long enough for the stop to come meanwhile.
        await turns(12)
        act(app.world)
        return name

    return from_async(run)


@step
def reserve(what: str) -> Effect[App, Any, str]:
    return acting(f"reserve {what}", lambda world: world.held.add(what)).map(lambda _: what)


@step
def release(what: str) -> Effect[App, Any, str]:
    return acting(f"release {what}", lambda world: world.held.discard(what))


@step
def use(what: str) -> Effect[App, Any, str]:
    def check(world: World) -> None:
        if what not in world.held:
            world.problems.append(f"{what} was used after it had been released")

    return acting(f"use {what}", check)


@step
def wait(what: str) -> Effect[App, Any, str]:
    """Never ends by itself. Once it waits, timeouts strike, and others may end."""

    async def run(app: App) -> str:
        app.world.done.append(f"wait {what}")
        app.waits.set()
        app.clock.strike()
        await anyio.sleep_forever()
        return what

    return from_async(run)


async def others_wait(app: App) -> None:
    if "wait a" not in app.world.done:
        await app.waits.wait()


def reserved(what: str, using: Callable[[str], AnyEffect] = use) -> Effect[Any, Any, Any]:
    return bracket(reserve(what), release, using)


@workflow
def plain(what: str) -> Do[App, Any, object]:
    used = yield from reserved(what)
    return [used, (yield from use_nothing(what))]


@step
def use_nothing(what: str) -> Effect[App, Any, str]:
    return acting(f"go on after {what}", lambda _: None)


@workflow
def on_exit(what: str) -> Do[App, Any, object]:
    held = yield from reserve(what)
    return (yield from use(held).on_exit(release(held)))


@workflow
def nested(what: str) -> Do[App, Any, object]:
    return (yield from reserved("outer", lambda _: reserved(what, lambda what: twice(what))))


def twice(what: str) -> AnyEffect:
    return use(what).and_then(lambda _: use("outer"))


@workflow
def acquired(what: str) -> Do[App, Any, object]:
    both = acquiring(reserve("outer"), release).and_(reserve(what), release)
    return (yield from both.use(lambda _, what: twice(what)))


@workflow
def in_a_body(what: str) -> Do[App, Any, object]:
    def using(what: str) -> Do[App, Any, object]:
        first = yield from use(what)
        return [first, (yield from use(what))]

    return (yield from reserved(what, lambda what: workflow(using).body(what)))


@workflow
def side_by_side(what: str) -> Do[App, Any, object]:
    items = [what, "b", "c"]
    return (yield from par_traverse(items, reserved, limit=2, key=str))


@workflow
def within_operators(what: str) -> Do[App, Any, object]:
    forever = from_async(lambda _: anyio.sleep_forever())
    return (yield from race([par(reserved(what), use_nothing("x")).timeout(60), forever]))


@workflow
def releasing_at_length(what: str) -> Do[App, Any, object]:
    """Whatever the finalizer is made of, and whatever it catches."""

    def letting_go(what: str) -> AnyEffect:
        both = par(release(what), use_nothing("x")).result()
        first: AnyEffect = now()
        return first.and_then(lambda _: race([both.timeout(60), sleep(60)]))

    def using(what: str) -> AnyEffect:
        first: AnyEffect = now()
        return first.and_then(lambda _: use(what))

    used = yield from bracket(reserve(what), letting_go, using)
    return [used, (yield from use_nothing(what))]


@step
def whole(what: str) -> Effect[App, Any, object]:
    """A step with steps of its own, which a resume skips."""
    return reserved(what)


@workflow
def within_a_step(what: str) -> Do[App, Any, object]:
    return [(yield from whole(what))]


@workflow
def child(what: str) -> Do[App, Any, object]:
    return (yield from plain.start(what))


@workflow
def child_of_a_holder(what: str) -> Do[App, Any, object]:
    def using(held: str) -> AnyEffect:
        return use(held).and_then(lambda _: plain.start(what, run_id="inner"))

    return (yield from reserved("outer", using))


def source(what: str) -> list[str]:
    return [what, "b"]


def mapped(what: str) -> Effect[App, Any, Any]:
    return reserved(what)


def joined(texts: list[Any]) -> Effect[App, Any, Any]:
    return pure(" ".join(texts))


graph = (
    StateGraph[App, Any, str]("graph")
    .node("first", lambda what: reserved(what).map(lambda _: what))
    .node("second", lambda what: use_nothing(what))
    .edge("first", "second")
    .entry("first")
    .exit("second")
    .build()
)
job = MapReduce(
    "job",
    items=source,
    key=str,
    max_parallel=2,
    map=mapped,
    reduce=joined,
)


@workflow
def of_nodes(what: str) -> Do[App, Any, object]:
    return [(yield from graph.body(what)), (yield from job.body(what)).value]


WORKFLOWS: list[AnyWorkflow] = [
    plain,
    on_exit,
    nested,
    acquired,
    in_a_body,
    side_by_side,
    within_operators,
    releasing_at_length,
    within_a_step,
    child,
    child_of_a_holder,
    graph,
    job,
    of_nodes,
]
all_workflows = pytest.mark.parametrize("made", WORKFLOWS, ids=lambda made: made.name)


async def run_until(told: Callable[[], Any], effect: AnyEffect, app: App, way: str) -> None:
    """Run the effect until somebody is told, and stop it from outside: by asyncio itself, or a scope."""
    if way == "task":
        task = asyncio.create_task(app.run(effect))
        with anyio.fail_after(30):
            await told()
        task.cancel()
        await asyncio.wait([task])
        return
    async with anyio.create_task_group() as group:
        group.start_soon(app.run, effect)
        with anyio.fail_after(30):
            await told()
        group.cancel_scope.cancel()


async def completed_steps(store: MemoryStore, run_id: str = "r") -> list[str]:
    entries = await read_entries(store, run_id)
    return sorted(entry.step for entry in entries if isinstance(entry, Completed))


@everywhere
@all_workflows
async def test_a_run_stopped_in_any_step_ends_as_one_that_is_not(
    made: AnyWorkflow, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryStore() as store:
        app = App(Checkpoints(store))
        expected = await app.run(made.start("a", run_id="r"))
        steps, done = await completed_steps(store), list(app.world.done)
    assert isinstance(expected, Success)
    for name in dict.fromkeys(done):
        async with MemoryStore() as store:
            app = App(Checkpoints(store), stop_in=name)
            await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
            state = (await read_checkpoint(store, "r")).state
            # What is released already is released to the end, and that may be the end of the run.
            assert isinstance(state, Interrupted) or name.startswith("release"), name

            again = App(Checkpoints(store), app.world)
            assert await again.run(made.resume("r")) == expected, name
            assert app.world.problems == [], name
            assert app.world.held == set(), name
            assert await completed_steps(store) == steps, name
            for each in set(done):
                # What was cut off is done again; nothing else is.
                twice_done = each.startswith(("use", "go on", "reserve")) and each in app.world.done
                most = done.count(each) + (1 if twice_done else 0)
                assert app.world.done.count(each) <= most, name
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@everywhere
@all_workflows
async def test_a_run_stopped_at_any_moment_ends_as_one_that_is_not(
    made: AnyWorkflow, way: str
) -> None:
    expected: Any = None
    for count in range(0, 2000, 3):
        async with MemoryStore() as store:
            app = App(Checkpoints(store))
            await run_until(lambda: turns(count), made.start("a", run_id="r"), app, way)  # noqa: B023
            info = await store.info("r")
            if info is None:
                continue
            again = App(Checkpoints(store), app.world)
            result = await again.run(made.resume("r"))
            expected = expected or result
            assert result == expected, count
            assert (app.world.problems, app.world.held) == ([], set()), count
            steps = await completed_steps(store)
            assert len(steps) == len(set(steps)), count
            if info.summary.status is RunStatus.COMPLETED:
                break
    else:
        raise AssertionError("it never got to its end")


@everywhere
async def test_finalizers_that_are_no_steps_run_when_the_run_is_stopped(
    store: MemoryStore, way: str
) -> None:
    closed: list[str] = []

    def closing(name: str) -> Effect[object, Any, object]:
        return from_fn(lambda _: closed.append(name))

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        using = bracket(pure("inner"), closing, lambda _: use(what)).on_exit(release(what))
        return (yield from bracket(pure("outer"), closing, lambda _: using))

    app = App(Checkpoints(store), stop_in="use a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert closed == ["inner", "outer"]
    assert app.world.done == ["use a"]


@everywhere
async def test_a_stopped_run_records_nothing_in_its_finalizers_and_begins_no_other_run(
    store: MemoryStore, way: str
) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        other: AnyEffect = plain.start(what, run_id="other")
        struck: AnyEffect = from_async(strike).timeout(1).result()
        ended = struck.and_then(lambda _: now())
        return (yield from use(what).on_exit(other).on_exit(ended))

    async def strike(app: App) -> None:
        app.clock.strike()
        await anyio.sleep_forever()

    app = App(Checkpoints(store), stop_in="use a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    kinds = [type(entry).__name__ for entry in await read_entries(store, "r")]
    assert kinds == ["Started", "BeforeStep", "Interrupted"]
    assert await store.info("other") is None

    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success("use a")
    other = await store.info("other")
    assert other is not None
    assert other.summary.status is RunStatus.COMPLETED


# What cancels within a run lets the run go on: the finalizers run their steps.


@workflow
def timing_out(what: str) -> Do[App, Any, object]:
    timed = yield from reserved(what, wait).timeout(1).result()
    assert isinstance(timed.failure(), TimedOut)
    return (yield from use_nothing(what))


@workflow
def losing(what: str) -> Do[App, Any, object]:
    winning = from_async(others_wait).and_then(lambda _: use_nothing("winner"))
    won = yield from race([reserved(what, wait), winning])
    return [won, (yield from use_nothing(what))]


@workflow
def beside_a_failure(what: str) -> Do[App, Any, object]:
    failing = from_async(others_wait).and_then(lambda _: failing_step("no"))
    items: list[AnyEffect] = [failing, reserved(what, wait)]
    failed = yield from par_traverse(items, lambda each: each).result()
    return [failed.failure(), (yield from use_nothing(what))]


@step
def failing_step(what: str) -> Effect[App, str, str]:
    return fail(what)


@workflow
def deep_within(what: str) -> Do[App, Any, object]:
    """What cancels is far outside of the finalizer, and the finalizers are within nodes and operators."""
    inside = par_traverse([what], lambda what: flow_of(what))
    timed = yield from inside.timeout(60).timeout(1).result()
    assert not isinstance(timed, Success)
    return (yield from use_nothing(what))


def flow_of(what: str) -> AnyEffect:
    holding = StateGraph[App, Any, str]("holding").node("hold", lambda what: reserved(what, wait))
    return holding.entry("hold").exit("hold").build().body(what)


CANCELLING: list[AnyWorkflow] = [timing_out, losing, beside_a_failure, deep_within]
all_that_cancel = pytest.mark.parametrize("made", CANCELLING, ids=lambda made: made.name)


@everywhere
@all_that_cancel
async def test_what_an_operator_cancels_is_released_at_once_and_by_no_resume(
    store: MemoryStore, made: AnyWorkflow, way: str
) -> None:
    app = App(Checkpoints(store), stop_in="go on after a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done.count("release a") == 1
    assert app.world.held == set()

    again = App(Checkpoints(store), app.world)
    assert isinstance(await again.run(made.resume("r")), Success)
    for name in ("reserve a", "wait a", "release a"):
        assert app.world.done.count(name) == 1


@everywhere
@pytest.mark.parametrize("made", [timing_out, losing], ids=lambda made: made.name)
async def test_a_run_stopped_while_an_operator_cancels_keeps_to_what_was_decided(
    store: MemoryStore, made: AnyWorkflow, way: str
) -> None:
    app = App(Checkpoints(store), stop_in="release a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    again = App(Checkpoints(store), app.world)
    assert isinstance(await again.run(made.resume("r")), Success)
    for name in ("reserve a", "wait a", "release a"):
        assert app.world.done.count(name) == 1


@everywhere
async def test_a_timeout_that_strikes_while_a_stopped_run_ends_decides_nothing(
    store: MemoryStore, way: str
) -> None:
    """The inner finalizer, which is no step, takes longer than the time that is left."""

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        lingering = use(what).on_exit(from_fn(late))
        return (yield from reserved(what, lambda _: lingering).timeout(1).result())

    def late(app: App) -> None:
        if app.stop_in is not None:
            app.clock.strike()

    app = App(Checkpoints(store), stop_in="use a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done == ["reserve a", "use a"]
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success(Success("use a"))
    assert app.world.problems == []
    assert app.world.done.count("release a") == 1


@everywhere
async def test_a_sibling_that_fails_while_the_run_is_stopped_decides_nothing(
    store: MemoryStore, way: str
) -> None:
    @step
    def stubborn() -> Effect[App, Any, str]:
        async def run(app: App) -> None:
            with anyio.CancelScope(shield=True):
                await turns(60)

        return from_async(run).and_then(lambda _: fail("no") if stops else pure("yes"))

    def lingering(_: object) -> AnyEffect:
        async def run(app: App) -> None:
            app.began.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await turns(90)

        return from_async(run) if stops else use("a")

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from par(stubborn(), reserved(what, lingering)))

    stops = True
    app = App(Checkpoints(store))
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done == ["reserve a"]
    stops = False
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success(("yes", "use a"))
    assert app.world.problems == []


async def test_what_the_deadline_of_a_finalizer_cuts_off_is_released(store: MemoryStore) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from pure(what).on_exit(reserved(what, wait)))

    app = App(Checkpoints(store))
    with pytest.raises(TimeoutError):
        await app.run(made.start("a", run_id="r"), finalizer_deadline=1)
    assert app.world.done == ["reserve a", "wait a", "release a"]
