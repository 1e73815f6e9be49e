"""A run that is stopped from outside leaves the steps of its finalizers to the resume."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    bracket,
    compensate,
    fail,
    now,
    par,
    par_traverse,
    pure,
    race,
    saga,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import Interrupted, RunStatus, find_run, read_checkpoint, read_entries
from effectflow.effects import acquiring, from_async, from_fn, par_reduce, using
from effectflow.graphs import StateGraph
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.runs.reservations import (
    AnyEffect,
    AnyWorkflow,
    App,
    completed_steps,
    everywhere,
    others_wait,
    plain,
    release,
    reserve,
    reserved,
    run_until,
    somewhere,
    turns,
    use,
    use_nothing,
    waiting_forever,
)
from tests.sweeps import sample_or_all

pytestmark = pytest.mark.anyio


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
    """A finalizer of several operators, which catches failures."""

    def letting_go(what: str) -> AnyEffect:
        both = par(release(what), use_nothing("x")).result()
        first: AnyEffect = now()
        return first.and_then(lambda _: race([both.timeout(60), sleep(60)]))

    def using(what: str) -> AnyEffect:
        first: AnyEffect = now()
        return first.and_then(lambda _: use(what))

    used = yield from bracket(reserve(what), letting_go, using)
    return [used, (yield from use_nothing(what))]


@workflow
def releasing_in_two_steps(what: str) -> Do[App, Any, object]:
    """The finalizer has a finalizer, whose step is left to the resume."""
    held = yield from reserve(what)
    finalizer = use_nothing("x").on_exit(release(held))
    return (yield from use(held).on_exit(finalizer))


@step
def whole(what: str) -> Effect[App, Any, object]:
    """A step with steps of its own, which a resume skips."""
    return reserved(what)


@workflow
def within_a_step(what: str) -> Do[App, Any, object]:
    return [(yield from whole(what))]


@workflow
def child(what: str) -> Do[App, Any, object]:
    return (yield from plain.call(what))


@workflow
def child_of_a_holder(what: str) -> Do[App, Any, object]:
    def using(held: str) -> AnyEffect:
        return use(held).and_then(lambda _: plain.call(what))

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
job = MapReduce("job", items=source, key=str, limit=2, map=mapped, reduce=joined)


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
    releasing_in_two_steps,
    within_a_step,
    child,
    child_of_a_holder,
    graph,
    job,
    of_nodes,
]


@somewhere(made=WORKFLOWS)
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


@somewhere(made=WORKFLOWS)
@sample_or_all("every", 17, 3)
async def test_a_run_stopped_at_any_moment_ends_as_one_that_is_not(
    made: AnyWorkflow, way: str, every: int
) -> None:
    expected: Any = None
    for count in range(1, 2000, every):
        async with MemoryStore() as store:
            app = App(Checkpoints(store))
            await run_until(lambda: turns(count), made.start("a", run_id="r"), app, way)  # noqa: B023
            info = await find_run(store, "r")
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


class StoppedIn(MemoryStore):
    """The run is to be stopped while the store does, or has done, the append of this number."""

    def __init__(self, number: int, *, is_done: bool) -> None:
        super().__init__()
        self.is_reached = anyio.Event()
        self._left = number
        self._is_done = is_done

    async def append(self, *arguments: Any, **options: Any) -> None:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            self.is_reached.set()
            await turns(12)
        await super().append(*arguments, **options)
        if self._left == 0 and self._is_done:
            self.is_reached.set()
            await turns(12)


@somewhere(made=[plain, nested, side_by_side], is_done=[False, True])
async def test_a_run_stopped_in_any_append_ends_as_one_that_is_not(
    made: AnyWorkflow, is_done: bool, way: str
) -> None:
    async with MemoryStore() as whole:
        expected = await App(Checkpoints(whole)).run(made.start("a", run_id="r"))
        steps = await completed_steps(whole)
    # A first append that is cut off leaves no run.
    for number in range(2, 100):
        async with StoppedIn(number, is_done=is_done) as store:
            app = App(Checkpoints(store))

            async def reached(store: StoppedIn = store) -> None:
                while not store.is_reached.is_set() and not await is_complete(store):
                    await turns(1)

            await run_until(reached, made.start("a", run_id="r"), app, way)
            again = App(Checkpoints(store), app.world)
            assert await again.run(made.resume("r")) == expected, number
            assert (app.world.problems, app.world.held) == ([], set()), number
            assert await completed_steps(store) == steps, number
            if not store.is_reached.is_set():
                return
    raise AssertionError("it never got to its end")


async def is_complete(store: MemoryStore) -> bool:
    info = await find_run(store, "r")
    return info is not None and info.summary.status is RunStatus.COMPLETED


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
async def test_the_branches_of_a_finalizer_run_when_the_run_is_stopped(
    store: MemoryStore, way: str
) -> None:
    closed: list[str] = []

    def closing(name: str) -> Effect[object, Any, object]:
        return from_async(lambda _: turns(2)).and_then(
            lambda _: from_fn(lambda _: closed.append(name))
        )

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from use(what).on_exit(par(closing("a"), closing("b"))))

    app = App(Checkpoints(store), stop_in="use a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert sorted(closed) == ["a", "b"]


@everywhere
async def test_a_stopped_run_records_nothing_in_its_finalizers_and_begins_no_other_run(
    store: MemoryStore, way: str
) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        other: AnyEffect = spawn(plain, what, run_id="other")
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
    assert await find_run(store, "other") is None

    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success("use a")
    assert await find_run(store, "other") is not None


@everywhere
async def test_a_race_in_a_finalizer_ends_with_the_branch_that_a_stop_leaves_to_the_resume(
    store: MemoryStore, way: str
) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        forever = from_async(lambda _: anyio.sleep_forever())
        return (yield from use(what).on_exit(race(forever, release(what))))

    app = App(Checkpoints(store), stop_in="use a")
    with anyio.fail_after(10):
        await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert await App(Checkpoints(store), app.world).run(made.resume("r")) == Success("use a")
    assert app.world.done == ["use a", "use a", "release a"]


@everywhere
async def test_a_limit_that_expires_in_a_finalizer_of_a_stopped_run_is_left_to_the_resume(
    store: MemoryStore, way: str
) -> None:
    @step
    def let_go(what: str) -> Effect[App, Any, str]:
        return from_async(lambda app: slowly(app, what))

    async def slowly(app: App, what: str) -> str:
        app.began.set()
        await turns(12)
        if len(app.world.done) == 1:
            # The run has been stopped meanwhile, and this attempt takes too long.
            app.clock.strike()
            await anyio.sleep_forever()
        app.world.done.append(f"let go of {what}")
        return what

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        releasing: Callable[[str], AnyEffect] = lambda what: let_go(what).timeout(1)  # noqa: E731
        return (yield from bracket(pure(what), releasing, use))

    app = App(Checkpoints(store))
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert isinstance((await read_checkpoint(store, "r")).state, Interrupted)

    app.world.done.append("stopped")
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success("use a")
    assert app.world.done == ["use a", "stopped", "let go of a"]


def ending(*_: object) -> AnyEffect:
    """A finalizer of two steps. The run is stopped during the first."""
    return release("first").and_then(lambda _: release("second"))


waiting = waiting_forever("a").on_exit(ending())


def others(end: AnyEffect) -> AnyEffect:
    """What ends while `waiting` waits, and so cancels it."""
    return from_async(others_wait).and_then(lambda _: end)


def striking(app: App) -> anyio.CancelScope:
    return app.clock.move_on_after(1)


@step(timeout=1)
def limited_step() -> Effect[App, Any, object]:
    return waiting


@workflow
def inner(what: str) -> Do[App, Any, object]:
    return (yield from use_nothing(what).on_exit(ending()))


ALONE: dict[str, AnyEffect] = {
    "on_exit": use_nothing("a").on_exit(ending()),
    "on_exit of a failure": fail("out of stock").on_exit(ending()),
    "bracket": bracket(pure("a"), ending, use_nothing),
    "timeout": waiting.timeout(1),
    "using": using(striking).use(lambda _: waiting),
    "limited step": limited_step(),
    "nested run": inner.call("a"),
    "saga": saga(compensate(use_nothing("a"), ending).and_then(lambda _: fail("out of stock"))),
}
PARALLEL: dict[str, AnyEffect] = {
    "race": race(waiting, others(pure("b"))),
    "par": par(waiting, others(fail("out of stock"))),
    "par_traverse": par_traverse([waiting, others(fail("out of stock"))], lambda one: one),
    "par_reduce": par_reduce(
        [waiting, others(fail("out of stock"))], lambda one: one, pure, limit=2
    ),
    **{f"{name} in a race": race(body) for name, body in ALONE.items()},
}


@everywhere
@pytest.mark.parametrize("part", ALONE)
async def test_a_stop_during_a_finalizer_leaves_its_next_step_to_the_resume(
    part: str, store: MemoryStore, way: str
) -> None:
    await check_stop_in_finalizer(ALONE[part], store, way)


# Not `using`: its context manager suppresses the cancellation that it began, which is a defect.
@everywhere
@pytest.mark.parametrize("part", [part for part in ALONE if part != "using"])
async def test_a_stop_ends_a_run_within_a_finalizer_during_a_finalizer_of_its_own(
    part: str, store: MemoryStore, way: str
) -> None:
    @workflow
    def within(_: str) -> Do[App, Any, object]:
        return (yield from ALONE[part])

    acquired: AnyEffect = pure("a")
    await check_stop_in_finalizer(acquired.on_exit(within.call("a")), store, way)


# Not for tasks that asyncio itself cancels: while such a task waits for parallel branches, nothing can
# learn of it before their finalizers have ended.
@pytest.mark.parametrize("part", PARALLEL)
async def test_a_stop_during_a_finalizer_of_a_branch_leaves_its_next_step_to_the_resume(
    part: str, store: MemoryStore
) -> None:
    await check_stop_in_finalizer(PARALLEL[part], store, "scope")


async def check_stop_in_finalizer(body: AnyEffect, store: MemoryStore, way: str) -> None:
    @workflow
    def made(_: str) -> Do[App, Any, object]:
        return (yield from body)

    app = App(Checkpoints(store), stop_in="release first")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert "release first" in app.world.done
    assert "release second" not in app.world.done

    again = App(Checkpoints(store), app.world)
    # The context manager ends its use without a value.
    with suppress(RuntimeError):
        await again.run(made.resume("r"))
    assert again.world.done.count("release second") == 1
