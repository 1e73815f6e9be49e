"""A resumed run handles a failure as the run did that handled it first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Never

import anyio
import pytest
from pydantic import TypeAdapter, ValidationError
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    ask,
    attempt,
    effect,
    fail,
    par,
    par_traverse,
    pure,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    DefinitionChanged,
    Failed,
    NotSerializable,
    TimerFired,
    read_entries,
)
from effectflow.effects import FailedAttempt, suspend
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, app_on, both_backends, last
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    clock_at,
    cut,
    hang,
    journal,
    made_of,
    resume,
    start,
    stopped,
)

pytestmark = [pytest.mark.anyio, both_backends]


async def in_two_lives(made: AnyWorkflow, store: MemoryStore) -> tuple[Any, TestClock]:
    """The result of a run that failed at `last`, and was resumed; each step is noted once.

    Also the clock of the resume.
    """
    app, clock = app_on(store, failing=["last"]), clock_at()
    assert await clock.run(made.start(None, run_id="r"), app) == Failure("crash here")
    before = list(app.world.done)
    app.world.recover()
    later = TestClock(clock.now() + timedelta(days=1))
    result = await later.run(made.resume("r"), app)
    assert app.world.done == before, "a resume runs nothing again"
    return result, later


async def test_the_child_that_failed_first_is_remembered(store: MemoryStore) -> None:
    @step
    def child(seconds: float) -> Effect[App, Any, None]:
        return sleep(seconds).and_then(lambda _: fail(f"after {seconds}"))

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from par_traverse([3.0, 1.0, 2.0], child).result()
        error = yield from act(str(result.failure()))
        yield from last()
        return error

    result, _ = await in_two_lives(made, store)
    assert result == Success("after 1.0")


class Undeclared(Exception):
    """A failure that no step declares."""


class Holding(Exception):
    """A declared failure, with what cannot be saved."""


parse = attempt(lambda _: TypeAdapter(int).validate_python("x"), ValidationError)
NO_NUMBER = parse.run_sync(None).failure()
ARGUMENTS = "Its class is known, but an instance cannot be rebuilt from its arguments"


cannot_be_rebuilt = pytest.mark.parametrize(
    ("error", "advice"),
    [
        (Undeclared("x"), "Declare its class"),
        (OSError("no encoding holds \udcff"), ARGUMENTS),
        (Holding(object()), ARGUMENTS),
        (NO_NUMBER, ARGUMENTS),  # which only pickle can make again
    ],
)


@cannot_be_rebuilt
async def test_an_error_that_a_resume_could_not_rebuild_must_not_be_handled(
    store: MemoryStore, error: Exception, advice: str
) -> None:
    """It may end the run. To go on from it would make a run that cannot be resumed."""
    failing: AnyEffect = with_checkpointing(
        "failing", suspend(lambda: fail(error)), error=Holding | ValidationError
    )
    app = app_on(store)
    assert await made_of(lambda: failing).start(None).run(app) == Failure(error)
    handling = made_of(lambda: failing.fallback("handled").and_then(act))
    refused = (await handling.start(None).run(app)).failure()
    assert isinstance(refused, NotSerializable)
    assert advice in str(refused)
    assert app.world.done == []


@cannot_be_rebuilt
async def test_an_error_of_a_called_workflow_that_a_resume_could_not_rebuild_must_not_be_handled(
    store: MemoryStore, error: Exception, advice: str
) -> None:
    @workflow
    def failing(_: object) -> Effect[App, Holding | ValidationError, Never]:
        failed: AnyEffect = suspend(lambda: fail(error))
        return failed

    app = app_on(store)
    assert await made_of(lambda: failing.call(None)).start(None).run(app) == Failure(error)
    handling = made_of(lambda: failing.call(None).fallback("handled").and_then(act))
    refused = (await handling.start(None).run(app)).failure()
    assert isinstance(refused, NotSerializable)
    assert advice in str(refused)
    assert app.world.done == []


# The child whose failure was handled: a resume finds it again, or says that it cannot.


async def test_the_child_that_failed_first_is_found_by_its_key(store: MemoryStore) -> None:
    numbers, ran = [1, 2, 3], list[int]()

    @effect
    def run(_: App, number: int) -> None:
        ran.append(number)

    def child(number: int) -> AnyEffect:
        ended: AnyEffect = fail(f"{number} is bad") if number == 1 else pure(number)
        return with_checkpointing("child", run(number).and_then(lambda _: ended))

    def key(number: int) -> str:
        """As a name of a file may be that is not text."""
        return f"[{chr(0xDC80 + number)}]/"

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from par_traverse(list(numbers), child, limit=1, key=key).result()
        yield from last()
        return result.failure()

    app = app_on(store, failing=["last"])
    await start(made, app)
    numbers.reverse()
    app.world.recover()
    assert await resume(made, app) == Success("1 is bad")
    assert ran == [1]


async def test_a_handled_failure_of_async_code_that_does_not_come_again_is_not_passed_over(
    store: MemoryStore,
) -> None:
    """It is no step, so a resume runs it again. But the run went on from its failure."""

    @effect(errors=Broken)
    async def ask_around(app: App) -> str:
        await anyio.lowlevel.checkpoint()
        if app.world.is_broken:
            raise Broken("lost")
        return "found"

    seen: list[Any] = []

    @workflow
    def made(_: None) -> Do[App, Any, None]:
        seen.append((yield from par(ask_around(), hang("search")).result()))
        yield from last()

    app = app_on(store, failing=["last"])
    assert await start(made, app) == Failure("crash here")
    assert await resume(made, app) == Failure("crash here")
    app.world.recover()
    before = await journal(store)
    refused = (await resume(made, app)).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "'par[0]/local'" in str(refused)
    assert "failed when it ran before, and now succeeded" in str(refused)
    assert await journal(store) == before
    assert [str(one.failure()) for one in seen] == ["lost", "lost"]


# A retry that is resumed decides as it did at first, and goes on where it was.


@step
def refusing(times: int) -> Effect[App, str, str]:
    """Fails this many times in all, and succeeds from then on."""

    def attempt(app: App) -> Effect[object, str, str]:
        app.world.done.append("attempt")
        attempts = app.world.done.count("attempt")
        return fail("not yet") if attempts <= times else pure(f"attempt {attempts}")

    return ask(App).and_then(attempt)


@pytest.mark.parametrize(
    ("delays", "expected"),
    [((1.0, 100.0), "attempt 3"), ((100.0, 1.0), "1 attempts in 0.0 s")],
    ids=["goes on", "ends"],
)
async def test_a_recorded_retry_does_not_depend_on_the_delay_that_a_resume_draws(
    store: MemoryStore, delays: tuple[float, float], expected: str
) -> None:
    """The policies of the two lives stand for what jitter draws in each."""

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        world = (yield from ask(App)).world
        policy = RetryPolicy.constant(delays[0 if world.is_broken else 1]).with_max_elapsed(10)
        retried = yield from suspend(lambda: refusing(2)).retry(policy).result()
        ended = retried.map(str).lash(
            lambda given_up: Success(f"{given_up.attempts} attempts in {given_up.elapsed} s")
        )
        yield from last()
        return ended.unwrap()

    result, clock = await in_two_lives(made, store)
    assert result == Success(expected)
    assert clock.monotonic() == 0


async def test_a_retry_that_ended_the_run_is_tried_once_more_by_each_resume(
    store: MemoryStore,
) -> None:
    policy = RetryPolicy.constant(10).with_max_retries(1)
    made, app = made_of(lambda: suspend(lambda: refusing(3)).retry(policy)), app_on(store)
    for life, attempts in ((start, 2), (resume, 3)):
        assert (await life(made, app)).failure().attempts == 2
        assert len(app.world.done) == attempts
    assert await resume(made, app) == Success("attempt 4")


async def test_the_time_that_a_retry_has_spent_counts_in_a_resume(store: MemoryStore) -> None:
    policy = RetryPolicy.constant(10).with_max_elapsed(25)
    made, app = made_of(lambda: suspend(lambda: refusing(99)).retry(policy)), app_on(store)
    await stopped(made.start(None, run_id="r"), app, seconds=15)
    assert len(app.world.done) == 2
    given_up = (await resume(made, app, at=15)).failure()
    assert len(app.world.done) == 3
    assert (given_up.attempts, given_up.elapsed) == (3, 20.0)


@pytest.mark.parametrize(
    "waiting",
    [
        lambda: sleep(5),
        lambda: par(sleep(5), sleep(6)),
        lambda: sleep(5).on_exit(sleep(1)),
    ],
    ids=["sleep", "par", "on_exit"],
)
async def test_a_failure_whose_handler_waits_stands(
    store: MemoryStore, waiting: Callable[[], AnyEffect]
) -> None:
    """A crash after the failure of `a` does not execute `a` again, as `tap_err` waits because of it."""

    def effect() -> AnyEffect:
        return act("a").tap_err(lambda _: waiting()).and_then(lambda _: act("b"))

    made, app = made_of(effect), app_on(store, failing=["a"])
    first = await start(made, app)
    entries = await read_entries(store, "r")
    failed = next(n for n, entry in enumerate(entries, 1) if isinstance(entry, Failed))
    for count in range(failed, len(entries) + 1):
        again = app_on(await cut(store, count))
        assert str(await resume(made, again)) == str(first), count
        assert again.world.done == [], count
        assert (await made.plan("r").run_or_raise(again)).recurs == ("a",), count


async def test_a_timeout_whose_handler_waits_stands(store: MemoryStore) -> None:
    def effect() -> AnyEffect:
        return hang("a").timeout(10).tap_err(lambda _: sleep(5)).result().map(str)

    made = made_of(effect)
    first = await start(made, app_on(store))
    entries = await read_entries(store, "r")
    fired = next(n for n, entry in enumerate(entries, 1) if isinstance(entry, TimerFired))
    for count in range(fired, len(entries)):
        app = app_on(await cut(store, count))
        with anyio.fail_after(60):
            assert await resume(made, app, at=100) == first, count
        assert app.world.done == [], count


async def test_the_hook_of_a_retry_is_told_the_same_of_a_rejected_failure(
    store: MemoryStore,
) -> None:
    told: list[FailedAttempt[Any]] = []

    @step
    def attempted(seconds: float) -> Effect[App, str, None]:
        return act("try").and_then(lambda _: sleep(seconds)).and_then(lambda _: fail("fatal"))

    @workflow
    def made(_: None) -> Do[App, Any, None]:
        yield from (
            attempted(5)
            .retry(
                RetryPolicy.constant(1).with_max_retries(3),
                retryable=lambda error: error != "fatal",
                on_retry=told.append,
            )
            .or_else(lambda _: act("handled"))
        )
        yield from last()

    await in_two_lives(made, store)

    assert told == [FailedAttempt("fatal", 1, None, 5.0)] * 2
