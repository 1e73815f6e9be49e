"""A `CancelledError` that nothing requested is a defect, wherever it is raised: nothing is dropped.

A client library raises one when its own future is cancelled. asyncio would end the task silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    Workflow,
    bracket,
    fail,
    from_blocking,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import RunStatus, find_run, read_checkpoint
from effectflow.effects import (
    emit,
    first_success,
    from_async,
    from_fn,
    par_reduce,
    par_try_all,
    suspend,
    traverse,
)
from effectflow.effects.child_tasks import Children, ImmediateChildren
from effectflow.executors import LocalExecutor
from effectflow.graphs import StateGraph
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, World
from tests.service.conftest import Service
from tests.service.lives import working
from tests.sweeps import in_pairs

pytestmark = pytest.mark.asyncio

AnyEffect = Effect[Any, Any, Any]

STRAY = "nothing has cancelled it"


async def cancelled_future(_: object = None) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancelled_task(_: object) -> None:
    task = asyncio.ensure_future(asyncio.sleep(10))
    task.cancel()
    await task


async def bare(_: object) -> None:
    raise asyncio.CancelledError


async def late(_: object) -> None:
    await asyncio.sleep(0.005)
    raise asyncio.CancelledError("late")


async def of_another_scope(_: object) -> None:
    """Await a task that a scope of another library has cancelled, with the message of such scopes."""
    task = asyncio.ensure_future(asyncio.sleep(10))
    await asyncio.sleep(0)
    task.cancel("Cancelled via cancel scope 7f0000000000")
    await task


Kind = Callable[[object], Coroutine[Any, Any, None]]

KINDS: list[Kind] = [cancelled_future, cancelled_task, bare, late, of_another_scope]


def item(kind: Kind, number: int) -> AnyEffect:
    return from_async(kind) if number == 2 else pure(number)


def total(values: list[int]) -> AnyEffect:
    return pure(sum(values))


OPERATORS: dict[str, Callable[[Kind], AnyEffect]] = {
    "alone": from_async,
    "step": lambda kind: step(name="one")(lambda: from_async(kind))(),
    "step that retries": lambda kind: step(
        name="one", retry=RetryPolicy.constant(0.001).with_max_retries(1), timeout=5
    )(lambda: from_async(kind))(),
    "traverse": lambda kind: traverse([1, 2, 3], partial(item, kind)),
    "par_traverse": lambda kind: par_traverse([1, 2, 3, 4], partial(item, kind)),
    "par_traverse, limit": lambda kind: par_traverse([2, 1, 3, 4], partial(item, kind), limit=1),
    "par_traverse, last": lambda kind: par_traverse([1, 3, 4, 2], partial(item, kind), limit=2),
    "par_traverse, key": lambda kind: par_traverse([1, 2, 3], partial(item, kind), key=str),
    "par": lambda kind: par(item(kind, 1), item(kind, 2)),
    "par_all": lambda kind: par_all([item(kind, number) for number in range(4)]),
    "par_try_all": lambda kind: par_try_all([item(kind, 1), item(kind, 2)], limit=1),
    "race": lambda kind: race([sleep(5), item(kind, 2)]),
    "first_success": lambda kind: first_success([sleep(5), item(kind, 2)]),
    "par_reduce, item": lambda kind: par_reduce([1, 2, 3, 4], partial(item, kind), total, limit=2),
    "par_reduce, group": lambda kind: par_reduce(
        [1, 3, 4], pure, lambda _: from_async(kind), limit=2
    ),
    "timeout": lambda kind: from_async(kind).timeout(5),
    "retry": lambda kind: from_async(kind).retry(RetryPolicy.constant(0.001).with_max_retries(1)),
    "use": lambda kind: bracket(pure(1), lambda _: pure(None), lambda _: from_async(kind)),
    "acquire": lambda kind: bracket(from_async(kind), lambda _: pure(None), lambda _: pure(3)),
    "release": lambda kind: bracket(pure(1), lambda _: from_async(kind), lambda _: pure(3)),
    "on_exit": lambda kind: pure(1).on_exit(lambda _: from_async(kind)),
    "par in par": lambda kind: par(par(item(kind, 1), item(kind, 2)), pure(3)),
    "timeout in par": lambda kind: par(from_async(kind).timeout(5), pure(3)),
    "par in timeout": lambda kind: par(from_async(kind), pure(3)).timeout(5),
    "listener": lambda kind: emit(1).into_sink(kind),
    "executor": lambda kind: LocalExecutor().apply(lambda _: from_async(kind), 1),
}


async def ends_in_a_defect(make: Callable[[], AnyEffect], *, durable: bool) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, Any]:
        return (yield from suspend(make))

    app = App()
    running = made.start(None, run_id="r") if durable else suspend(make)
    with pytest.raises(RuntimeError, match=STRAY):
        await asyncio.wait_for(asyncio.create_task(running.run(app)), 5)
    if durable:
        info = await find_run(app.checkpoints.store, "r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)


@in_pairs(operator=OPERATORS, kind=KINDS, durable=[False, True])
async def test_a_child_that_ends_in_a_stray_cancellation_is_a_defect(
    operator: str, kind: Kind, durable: bool
) -> None:
    await ends_in_a_defect(lambda: OPERATORS[operator](kind), durable=durable)


def raise_stray(*_: object) -> Any:
    raise asyncio.CancelledError


async def stray_items() -> AsyncIterator[int]:
    yield 1
    await cancelled_future()


async def stray_at_close() -> AsyncIterator[int]:
    try:
        for number in range(5):
            yield number
    finally:
        await cancelled_future()


def stray_generator() -> Iterator[int]:
    yield 1
    raise_stray()


BESIDE: dict[str, Callable[[], AnyEffect]] = {
    "async items": lambda: par_traverse(stray_items(), pure),
    "async items, limit": lambda: par_traverse(stray_items(), pure, limit=1),
    "items that are closed": lambda: par_traverse(stray_at_close(), pure, limit=1),
    "items": lambda: par_traverse(stray_generator(), pure),
    "items, limit": lambda: par_traverse(stray_generator(), pure, limit=1),
    "items of par_reduce": lambda: par_reduce(stray_generator(), pure, total, limit=2),
    "items of traverse": lambda: traverse(stray_generator(), pure),
    "the function of an item": lambda: par_traverse([1, 2], raise_stray),
    "the function of a group": lambda: par_reduce([1, 2], pure, raise_stray, limit=2),
    "a key": lambda: par_traverse([1, 2], pure, key=raise_stray),
    "effects": lambda: par_all(map(raise_stray, [1, 2])),
    "a thread": lambda: par(from_blocking(raise_stray), pure(1)),
}


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("name", BESIDE)
async def test_a_stray_cancellation_beside_the_effects_is_a_defect(
    name: str, durable: bool
) -> None:
    await ends_in_a_defect(BESIDE[name], durable=durable)


def graph(kind: Kind) -> Any:
    def bad(_: int) -> AnyEffect:
        return from_async(kind)

    return StateGraph[Any, Any, int]("graph").node("bad", bad).entry("bad").exit("bad").build()


def parallel_node(kind: Kind) -> Any:
    def bad(_: int) -> AnyEffect:
        return from_async(kind)

    def good(number: int) -> AnyEffect:
        return pure(number)

    node = StateGraph[Any, Any, int]("graph")
    node.parallel("both", {"good": good, "bad": bad}, merge=lambda _, ends: sum(ends.values()))
    return node.entry("both").exit("both").build()


def list_of_steps(kind: Kind) -> Any:
    def good(number: int) -> AnyEffect:
        return pure(number)

    def bad(_: int) -> AnyEffect:
        return from_async(kind)

    return Workflow.of_steps("list", [good, bad])


def machine(kind: Kind) -> Any:
    def act(_: str) -> AnyEffect:
        return from_async(kind).map(lambda _: Moved("b"))

    transitions = [Transition[Any, Any, Any]("go", "a", "b", action=act)]
    return StateMachine[Any, Any, Any]("machine", initial="a", transitions=transitions, final={"b"})


def job(kind: Kind, **options: Any) -> Any:
    return MapReduce(
        "job",
        items=lambda _: [1, 2, 3],
        map=partial(item, kind),
        reduce=total,
        key=str,
        limit=2,
        **options,
    )


def outer(kind: Kind) -> Any:
    inner = list_of_steps(kind)

    @workflow
    def outer(number: int) -> Do[App, Any, Any]:
        return (yield from inner.call(number))

    return outer


BUILDERS: list[Callable[[Kind], Any]] = [
    graph,
    parallel_node,
    list_of_steps,
    machine,
    job,
    partial(job, on_item_failure="dead_letter"),
    partial(job, executor=LocalExecutor()),
    outer,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", BUILDERS)
async def test_a_builder_completes_nothing_with_a_part_missing(
    build: Callable[[Kind], Any], kind: Kind
) -> None:
    app, made = App(), build(kind)
    running = made.start(None if build is machine else 1, run_id="r")
    with pytest.raises(RuntimeError, match=STRAY):
        await asyncio.wait_for(asyncio.create_task(running.run(app)), 5)
    info = await find_run(app.checkpoints.store, "r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)


async def test_a_cancelled_scope_around_is_not_stray() -> None:
    with anyio.move_on_after(0.01) as scope:
        await par_all([sleep(5), par(sleep(5), sleep(5))]).run(None)
    assert scope.cancelled_caught


class Lost(BaseException):
    """Ends a child without a trace, in the test below."""


def lost(_: object = None) -> Any:
    raise Lost


LOSING: dict[str, Callable[[], AnyEffect]] = {
    "par": lambda: par(pure(1), from_fn(lost), pure(3)),
    "par_all": lambda: par_all([pure(1), pure(2), from_fn(lost)]),
    "par_all, limit": lambda: par_all([from_fn(lost), pure(2)], limit=1),
    "par_all, failing": lambda: par_all([fail(1), from_fn(lost)]),
    "par_try_all": lambda: par_try_all([pure(1), from_fn(lost)]),
    "par_traverse, key": lambda: par_traverse([1, 2], lost, key=str),
    "par_reduce": lambda: par_reduce(
        [1, 2, 3], lambda number: from_fn(lost) if number == 3 else pure(number), total, limit=3
    ),
    "race": lambda: race([from_fn(lost)]),
    "first_success": lambda: first_success([fail(1), from_fn(lost)]),
}


@pytest.mark.parametrize("name", LOSING)
async def test_an_operator_that_lost_a_child_does_not_complete(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if something unknown loses a child, its operator does not complete."""

    def losing(start: Callable[..., None]) -> Callable[..., None]:
        def start_to_lose(children: Children, run: Callable[..., Any], *arguments: Any) -> None:
            async def run_or_lose(*arguments: Any) -> None:
                with suppress(Lost):
                    await run(*arguments)

            start(children, run_or_lose, *arguments)

        return start_to_lose

    for kind in (Children, ImmediateChildren):
        monkeypatch.setattr(kind, "start", losing(kind.start))
    with pytest.raises(RuntimeError, match="children were lost"):
        await LOSING[name]().run(None)


async def fails(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise ValueError("no such tool")


@step
async def groups() -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(0))
        tasks.create_task(fails(0.01))
    return "grouped"


@step
async def groups_nothing() -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(0))
    return "went on"


async def ends_late() -> None:
    try:
        await asyncio.sleep(10)
    finally:
        await asyncio.sleep(0.05)


@workflow
async def fails_in_a_group() -> str:
    return await groups()


@workflow
async def handles_a_group() -> str:
    try:
        return await groups()
    except* ValueError:
        pass
    return await groups_nothing()


async def test_a_task_group_that_fails_in_a_step_is_a_defect_of_the_run() -> None:
    app = App()
    with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):
        await fails_in_a_group.start(run_id="r").run(app)
    info = await find_run(app.checkpoints.store, "r")
    assert info is not None
    assert info.summary.status is RunStatus.FAILED


async def test_a_body_goes_on_after_a_task_group_that_failed() -> None:
    assert await handles_a_group.start(run_id="r").run(App()) == Success("went on")


async def test_a_cancellation_from_outside_is_not_taken_for_that_of_a_task_group() -> None:
    @workflow
    async def grouped() -> str:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails(0))
                tasks.create_task(ends_late())
        return await groups_nothing()

    running = asyncio.create_task(grouped.start(run_id="r").run(App()))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_body_whose_task_group_fails_ends_a_run_of_a_worker_once() -> None:
    @step
    async def charge() -> str:
        return "charged"

    async def one() -> str:
        return await charge()

    store = MemoryStore()

    @workflow
    async def grouped(_: None) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one())
            tasks.create_task(one())

    async with working(Service(store, World()), grouped) as worker:
        handle = await worker.client.submit(grouped, None, run_id="r")
        with pytest.raises(Exception, match="unhandled errors in a TaskGroup"):
            await handle.result(timeout=10)
    assert (await read_checkpoint(store, "r")).metadata.resumes <= 1
