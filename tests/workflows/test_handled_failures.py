"""A resumed run handles a failure as the run did that handled it first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
from pydantic import TypeAdapter, ValidationError
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    Workflow,
    attempt,
    do,
    effect,
    fail,
    from_fn,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    uuid,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import NotSerializable, RunInfo, RunStatus, read_checkpoint
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, World, app_on, last
from tests.workflows.journals import made_of

pytestmark = pytest.mark.anyio


class Refused(Exception):
    """A failure that the steps declare."""


class RefusedTwice(Refused):
    """One that derives from what they declare."""


class ConnectionError(Exception):  # noqa: A001, the name of a built-in one on purpose
    """A failure with the name of a built-in one."""


@step
def note(text: str) -> Effect[App, Any, str]:
    def write(app: App) -> str:
        app.world.done.append(text)
        return text

    return from_fn(write)


@step
def slow() -> Effect[App, Any, str]:
    """Takes a minute in the first life, and no time in the next."""

    def look(app: App) -> Effect[object, Any, None]:
        return sleep(60 if app.world.is_broken else 0)

    return from_fn(look).and_then(lambda ended: ended).map(lambda _: "in time")


async def in_two_lives(
    made: Workflow[App, Any, None, Any], store: MemoryStore, *, is_timed: bool = False
) -> tuple[Any, World]:
    """The result of a run that failed at `last`, and was resumed; each step is noted once."""
    app = app_on(store, failing=["last"])
    clock = TestClock()
    first = made.start(None, run_id="r")
    assert (await clock.run(first, app) if is_timed else await first.run(app)) == Failure(
        "crash here"
    )
    before = list(app.world.done)
    app.world.recover()
    resumed = made.resume("r")
    result = await clock.run(resumed, app) if is_timed else await resumed.run(app)
    assert app.world.done == before, "a resume runs nothing again"
    return result, app.world


async def test_the_child_that_failed_first_is_remembered(store: MemoryStore) -> None:
    @step
    def child(seconds: float) -> Effect[App, Any, None]:
        return sleep(seconds).and_then(lambda _: fail(f"after {seconds}"))

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from par_traverse([3.0, 1.0, 2.0], child).result()
        error = yield from note(str(result.failure()))
        yield from last()
        return error

    result, _ = await in_two_lives(made, store, is_timed=True)
    assert result == Success("after 1.0")


async def test_the_winner_of_a_race_is_remembered(store: MemoryStore) -> None:
    @do
    def runner(seconds: float) -> Do[App, Any, str]:
        yield from sleep(seconds)
        return (yield from note(f"after {seconds}"))

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        won = yield from race([runner(3), runner(1), runner(2)])
        yield from note(f"won {won}")
        yield from last()
        return won

    result, world = await in_two_lives(made, store, is_timed=True)
    assert result == Success("after 1")
    assert world.done == ["after 1", "won after 1"]


async def test_what_timed_out_stays_timed_out(store: MemoryStore) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, str]:
        answer = yield from slow().timeout(5).fallback("too late")
        yield from note(answer)
        yield from last()
        return answer

    result, _ = await in_two_lives(made, store, is_timed=True)
    assert result == Success("too late")


async def test_a_timeout_that_ended_the_run_is_tried_again(store: MemoryStore) -> None:
    made = made_of(lambda: slow().timeout(5))

    app = app_on(store, failing=["last"])
    ended: Any = await TestClock().run(made.start(None, run_id="r"), app)
    assert ended.failure().seconds == 5
    app.world.recover()
    assert await TestClock().run(made.resume("r"), app) == Success("in time")


async def test_attempts_and_delays_are_not_spent_again(store: MemoryStore) -> None:
    clock = TestClock()

    @step
    def flaky() -> Effect[App, Any, int]:
        def attempt(app: App) -> Effect[object, Any, int]:
            app.world.done.append("attempt")
            tries = app.world.done.count("attempt")
            return pure(tries) if tries == 3 else fail("not yet")

        return from_fn(attempt).and_then(lambda ended: ended)

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        policy = RetryPolicy.constant(100.0).with_max_elapsed(250.0)
        tries = yield from flaky().retry(policy)
        yield from note(f"{tries}")
        yield from last()
        return tries

    app = app_on(store, failing=["last"])
    assert await clock.run(made.start(None, run_id="r"), app) == Failure("crash here")
    app.world.recover()
    later = TestClock(clock.now() + timedelta(days=1))
    assert await later.run(made.resume("r"), app) == Success(3)
    assert (clock.monotonic(), later.monotonic()) == (200, 0)
    assert app.world.done.count("attempt") == 3


async def test_a_sleep_is_slept_once(store: MemoryStore) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, str]:
        yield from sleep(3600)
        yield from note("woke up")
        yield from last()
        return "rested"

    app = app_on(store, failing=["last"])
    clock = TestClock()
    await clock.run(made.start(None, run_id="r"), app)
    app.world.recover()
    later = TestClock(clock.now())
    assert await later.run(made.resume("r"), app) == Success("rested")
    assert later.monotonic() == 0


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "/nonexistent"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        KeyError("k"),
        Refused("declared", 7),
        RefusedTwice("derived"),
        ConnectionError("no built-in one"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_handled_error_is_the_same_after_a_resume(
    store: MemoryStore, error: Exception
) -> None:
    seen: list[Exception] = []

    @step
    @effect(errors=(Refused, ConnectionError, Exception))
    def failing(_: App) -> None:
        raise error

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from failing().result()
        caught = result.failure()
        seen.append(caught)
        yield from note("handled")
        yield from last()
        return f"{type(caught).__name__}: {caught!r}"

    await in_two_lives(made, store)
    first, again = seen
    assert type(again) is type(first)
    assert (str(again), again.args, vars(again)) == (str(first), first.args, vars(first))
    if isinstance(first, OSError) and isinstance(again, OSError):
        assert (again.errno, again.filename) == (first.errno, first.filename)


class Undeclared(Exception):
    """A failure that no step declares."""


class Holding(Exception):
    """A declared failure, with what cannot be saved."""


parse = attempt(lambda _: TypeAdapter(int).validate_python("x"), ValidationError)
NO_NUMBER = parse.run_sync(None).failure()
ARGUMENTS = "Its class is known, but an instance cannot be made again of its arguments"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (Undeclared("x"), "Declare its class"),
        (OSError("no encoding holds \udcff"), ARGUMENTS),
        (Holding(object()), ARGUMENTS),
        (NO_NUMBER, ARGUMENTS),  # which only pickle can make again
    ],
)
async def test_an_error_that_a_resume_could_not_rebuild_must_not_be_handled(
    store: MemoryStore, error: Exception, advice: str
) -> None:
    """It may end the run. To go on from it would make a run that cannot be resumed."""

    def failing(_: None) -> Effect[object, Exception, str]:
        return fail(error)

    def step_that_fails() -> Effect[App, Exception, str]:
        return with_checkpointing("failing", failing(None), error=Holding | ValidationError)

    passing_on = made_of(lambda: step_that_fails())

    @workflow
    def handling(_: None) -> Do[App, Any, str]:
        handled = yield from step_that_fails().fallback("handled")
        return (yield from note(handled))

    app = app_on(store, failing=["last"])
    assert await passing_on.start(None).run(app) == Failure(error)
    refused = (await handling.start(None).run(app)).failure()
    assert isinstance(refused, NotSerializable)
    assert advice in str(refused)
    assert app.world.done == []


async def test_a_run_within_a_run_keeps_its_id(store: MemoryStore) -> None:
    inner = made_of(lambda: note("inner"))

    @workflow
    def outer(_: None) -> Do[App, Any, str]:
        done = yield from inner.start(None)
        token = yield from uuid()
        yield from last()
        return f"{done} {token}"

    await in_two_lives(outer, store)
    runs = await store.find()
    assert sorted(run.summary.workflow for run in runs) == ["inner", "outer"]


async def test_the_items_of_par_traverse_raise_as_themselves(store: MemoryStore) -> None:
    def items() -> Any:
        yield 1
        raise ValueError("no more")

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        try:
            yield from par_traverse(items(), lambda _: note("child"))
        except ValueError:
            return "caught"
        return "not caught"

    assert await made.start(None).run(app_on(store, failing=["last"])) == Success("caught")


async def test_an_interruption_at_any_moment_leaves_a_plan_that_is_right(
    store: MemoryStore,
) -> None:
    """Cancelled after each turn of the loop: the plan starts at the first step not completed."""
    names = ("a", "b", "c")

    def passing(name: str) -> Any:
        def run(state: list[str]) -> Effect[App, Any, list[str]]:
            return sleep(0).map(lambda _: [*state, name])

        run.__name__ = name
        return run

    made = Workflow.of_steps("three", [passing(name) for name in names])
    app = app_on(store, failing=["last"])
    for turns in range(60):
        run_id = f"r{turns}"
        async with anyio.create_task_group() as group:
            group.start_soon(made.start([], run_id=run_id).run, app)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        if await _status(store, run_id) in (None, RunStatus.COMPLETED):
            continue
        done = len((await read_checkpoint(store, run_id)).completed_steps)
        plan = (await made.plan(run_id).run(app)).unwrap()
        assert plan.start == names[done : done + 1], turns
        assert await made.resume(run_id).run(app) == Success(list(names))


async def _status(store: MemoryStore, run_id: str) -> RunStatus | None:
    info: RunInfo | None = await store.info(run_id)
    return None if info is None else info.summary.status


class Mute(Exception):
    """One that fails to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_that_cannot_be_made_text_is_recorded() -> None:
    mute: Effect[object, Mute, int] = fail(Mute(7))

    say = made_of(lambda: mute.checkpointed("say", error=Mute))

    async with MemoryStore() as store:
        ended = await say.start(1, run_id="r").run(app_on(store, failing=["last"]))
        assert isinstance(ended, Failure)
        assert isinstance(ended.failure(), Mute)
        checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.status is RunStatus.FAILED
    assert "RuntimeError in Mute.__str__" in checkpoint.history[0].detail
