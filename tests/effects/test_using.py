"""Context managers as resources of effects, and lists of resources that are joined."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    EffectError,
    HasCheckpoints,
    TimedOut,
    ask,
    fail,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.effects import TracedError, acquiring, die, from_fn, using
from effectflow.stores import MemoryStore

AnyEffect = Effect[object, Any, Any]
anyio_test = pytest.mark.anyio


def writing(log: list[str], text: str) -> AnyEffect:
    def write(_: object) -> str:
        log.append(text)
        return text

    return from_fn(write)


class Manager:
    """An async context manager that writes down with what it is left, and may wait or raise then."""

    def __init__(
        self, log: list[Any], *, wait: float = 0.0, raises: Exception | None = None
    ) -> None:
        self.log = log
        self.wait = wait
        self.raises = raises

    async def __aenter__(self) -> str:
        self.log.append("entered")
        return "resource"

    async def __aexit__(self, kind: object, raised: BaseException | None, _: object) -> bool:
        await anyio.sleep(self.wait)
        self.log.append(raised)
        if self.raises is not None:
            raise self.raises
        return True


@anyio_test
async def test_a_context_manager_receives_what_ended_the_use() -> None:
    log: list[Any] = []
    error, bug = KeyError("declared"), ValueError("bug")

    def managed(use: AnyEffect) -> AnyEffect:
        return using(lambda _: Manager(log)).use(lambda resource: use.map(lambda _: resource))

    assert await managed(pure(1)).run(None) == Success("resource")
    assert await managed(fail(error)).run(None) == Failure(error)
    assert await managed(fail("no")).run(None) == Failure("no")
    with pytest.raises(ValueError, match="bug"):
        await managed(die(bug)).run(None)
    assert log[:5] == ["entered", None, "entered", error, "entered"]
    assert isinstance(log[5], EffectError)
    assert log[5].error == "no"
    assert log[6:] == ["entered", bug]


@anyio_test
async def test_a_plain_context_manager_is_made_from_the_environment() -> None:
    log: list[str] = []

    @contextmanager
    def opened(name: str) -> Generator[str]:
        log.append(f"open {name}")
        try:
            yield name.upper()
        finally:
            log.append(f"close {name}")

    used = using(opened).use(lambda name: pure(name).zip(ask(str)))
    assert await used.run("a") == Success(("A", "a"))
    assert await used.run("b") == Success(("B", "b"))
    assert log == ["open a", "close a", "open b", "close b"]


@anyio_test
async def test_an_exit_is_not_cut_off_by_a_timeout_or_a_lost_race() -> None:
    log: list[Any] = []
    slow = using(lambda _: Manager(log, wait=0.05)).use(lambda _: sleep(60))

    assert isinstance((await slow.timeout(0.01).run(None)).failure(), TimedOut)
    assert await race(slow, sleep(0.01).map(lambda _: "won")).run(None) == Success("won")
    assert [one == "entered" for one in log] == [True, False] * 2
    assert all(isinstance(one, anyio.get_cancelled_exc_class()) for one in log[1::2])


@anyio_test
async def test_a_manager_is_entered_and_left_in_the_task_of_its_use() -> None:
    """So what belongs to a task works: locks, limiters, task groups, scopes, context variables."""
    lock, limiter = anyio.Lock(), anyio.CapacityLimiter(1)
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    log: list[str] = []

    @contextmanager
    def set_variable(_: object) -> Generator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)

    @asynccontextmanager
    async def with_tasks(_: object) -> AsyncGenerator[Any]:
        async with anyio.create_task_group() as tasks:
            yield tasks

    async def work() -> None:
        log.append("worked")

    whole = (
        using(lambda _: lock)
        .and_(using(lambda _: limiter))
        .and_(using(set_variable))
        .and_(using(with_tasks))
        .and_(using(lambda _: anyio.move_on_after(60)))
        .use(
            lambda _lock, _limiter, _variable, tasks, _scope: from_fn(
                lambda _: tasks.start_soon(work)
            ).map(lambda _: (lock.locked(), variable.get()))
        )
    )
    assert await whole.run(None) == Success((True, "set"))
    assert await whole.timeout(60).run(None) == Success((True, "set"))
    assert (lock.locked(), variable.get(), log) == (False, "unset", ["worked", "worked"])


@anyio_test
async def test_a_cancelled_use_leaves_its_manager_and_stays_cancelled() -> None:
    log: list[Any] = []
    with anyio.move_on_after(0.01) as scope:
        await using(lambda _: Manager(log, wait=0.01)).use(lambda _: sleep(60)).run(None)
    assert scope.cancelled_caught
    assert len(log) == 2


@anyio_test
async def test_a_failing_exit_does_not_replace_the_error_of_the_use() -> None:
    broken = using(lambda _: Manager([], raises=OSError("stuck")))

    traced = await broken.use(lambda _: fail("no")).traced().run(None)
    assert traced == Failure(TracedError("no", ("and a finalizer failed: OSError('stuck')",)))
    late = (await broken.use(lambda _: sleep(60)).timeout(0.01).traced().run(None)).failure()
    assert isinstance(late.error, TimedOut)
    assert late.trail == ("and a finalizer failed: OSError('stuck')",)
    with pytest.raises(ValueError, match="bug") as caught:
        await broken.use(lambda _: die(ValueError("bug"))).run(None)
    assert caught.value.__notes__ == ["and a finalizer failed: OSError('stuck')"]
    with pytest.raises(OSError, match="stuck"):
        await broken.use(pure).run(None)


@anyio_test
async def test_an_exit_that_hangs_ends_with_the_deadline_of_finalizers() -> None:
    hanging = using(lambda _: Manager([], wait=60)).use(pure)
    with pytest.raises(TimeoutError, match="took more than"):
        await hanging.run(None, finalizer_deadline=0.01)

    failing = using(lambda _: Manager([], wait=60)).use(lambda _: fail("no")).traced()
    [note] = (await failing.run(None, finalizer_deadline=0.01)).failure().trail
    assert "took more than 0.01 s" in note
    dying = using(lambda _: Manager([], wait=60)).use(lambda _: die(ValueError("bug")))
    with pytest.raises(ValueError, match="bug") as caught:
        await dying.run(None, finalizer_deadline=0.01)
    assert "took more than 0.01 s" in caught.value.__notes__[0]
    late = using(lambda _: Manager([], wait=60)).use(lambda _: sleep(60)).timeout(0.01).traced()
    [note] = (await late.run(None, finalizer_deadline=0.01)).failure().trail
    assert "took more than 0.01 s" in note


@anyio_test
async def test_what_a_task_group_raises_when_it_cancels_its_use_is_the_defect() -> None:
    async def broken() -> None:
        raise ValueError("child")

    def starting(group: anyio.abc.TaskGroup) -> AnyEffect:
        return from_fn(lambda _: group.start_soon(broken)).and_then(lambda _: sleep(60))

    grouped = using(lambda _: anyio.create_task_group())
    for effect in (
        grouped.use(starting),
        grouped.and_(using(lambda _: Manager([]))).use(lambda group, _: starting(group)),
    ):
        with pytest.raises(ExceptionGroup) as caught:
            await effect.timeout(60).run(None)
        assert [repr(one) for one in caught.value.exceptions] == ["ValueError('child')"]


@anyio_test
async def test_a_cancel_scope_that_ends_the_use_is_a_clear_defect() -> None:
    with pytest.raises(RuntimeError, match=r"has no value: limit it with \.timeout"):
        await using(lambda _: anyio.move_on_after(0.01)).use(lambda _: sleep(60)).run(None)
    with pytest.raises(TimeoutError):
        await using(lambda _: anyio.fail_after(0.01)).use(lambda _: sleep(60)).run(None)
    # The cancellation of a timeout stands, even if the scope hides it.
    late = using(lambda _: anyio.move_on_after(60)).use(lambda _: sleep(60)).timeout(0.01)
    assert isinstance((await late.run(None)).failure(), TimedOut)


@anyio_test
async def test_using_something_other_than_a_context_manager_is_a_clear_defect() -> None:
    with pytest.raises(TypeError, match="needs a context manager"):
        await using(lambda _: "file").use(pure).run(None)  # pyright: ignore[reportArgumentType]


@anyio_test
async def test_several_resources_are_joined() -> None:
    log: list[str] = []

    def one(name: str) -> Any:
        return acquiring(writing(log, name), lambda name: writing(log, f"-{name}"))

    joined = one("a").and_(one("b").and_(using(lambda _: nullcontext("c")))).and_(one("d"))
    assert await joined.use(lambda *names: pure("".join(names))).run(None) == Success("abcd")
    assert log == ["a", "b", "d", "-d", "-b", "-a"]


class Durable:
    def __init__(self) -> None:
        self.checkpoints = Checkpoints(MemoryStore())
        self.log: list[Any] = []
        self.fails = True


@step
def charge(amount: int) -> Effect[Durable, ConnectionError, int]:
    return ask(Durable).and_then(
        lambda env: fail(ConnectionError("lost")) if env.fails else pure(amount)
    )


@workflow
def charging(amount: int) -> Effect[Durable, ConnectionError, int]:
    return using(manager_of).use(lambda _: charge(amount))


def manager_of(env: Durable) -> Manager:
    return Manager(env.log)


@anyio_test
async def test_a_resume_enters_a_manager_again_and_a_plan_does_not() -> None:
    env = Durable()
    assert isinstance(await charging.start(5, run_id="r").run(env), Failure)
    assert len(env.log) == 2
    plan = (await charging.plan("r").run(env)).unwrap()
    assert (plan.start, len(env.log)) == ((), 2)
    env.fails = False
    assert await charging.resume("r").run(env) == Success(5)
    assert env.log[2:] == ["entered", None]
    assert await charging.resume("r").run(env) == Success(5)
    assert len(env.log) == 4


@anyio_test
async def test_a_manager_that_cancels_its_use_does_not_stop_a_durable_run() -> None:
    @step
    def hanging() -> AnyEffect:
        return sleep(60)

    @step
    def charged() -> AnyEffect:
        return pure("charged")

    @workflow
    def patient(_: int) -> Do[HasCheckpoints, Any, Any]:
        with suppress(TimeoutError):
            yield from using(lambda _: anyio.fail_after(0.01)).use(lambda _: hanging())
        return (yield from charged())

    class Environment:
        checkpoints = Checkpoints(MemoryStore())

    with anyio.fail_after(10):
        assert await patient.start(1, run_id="r").run(Environment()) == Success("charged")
