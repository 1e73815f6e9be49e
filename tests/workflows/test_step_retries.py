"""Steps that retry themselves and limit the time of each attempt; all attempts are one step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    Workflow,
    ask,
    current_step,
    effect,
    from_blocking,
    from_fn,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import BeforeStep, Completed, Failed, read_entries
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, TestClock
from tests.apps import App, Broken, app_on

pytestmark = pytest.mark.anyio

THREE = RetryPolicy.constant(10).with_max_retries(2)
BEGAN = datetime(2000, 1, 1, tzinfo=UTC)

Retried = Workflow[App, Any, None, Any]


def of(work: Callable[[], Effect[App, Any, Any]]) -> Retried:
    @workflow(name="retried")
    def retried(_: None) -> Do[App, Any, Any]:
        return (yield from work())

    return retried


@step(retry=THREE)
@effect(errors=Broken)
def charge(app: App) -> str:
    """Notes the key that it hands to the bank."""
    app.world.note("charge")
    return current_step().idempotency_key


async def attempts(store: MemoryStore) -> list[int]:
    return [e.attempt for e in await read_entries(store, "r") if isinstance(e, BeforeStep)]


async def test_all_attempts_are_one_step_with_one_idempotency_key(store: MemoryStore) -> None:
    keys: list[str] = []

    @step(retry=THREE)
    @effect(errors=Broken)
    def pay(app: App) -> str:
        keys.append(current_step().idempotency_key)
        app.world.note("pay")
        return "paid"

    clock = TestClock(BEGAN)
    app = app_on(store, failing=["pay#1", "pay#2"])

    assert await clock.run(of(pay).start(None, run_id="r"), app) == Success("paid")

    assert keys == ["r:pay"] * 3
    assert clock.monotonic() == 20
    entries = [
        e for e in await read_entries(store, "r") if isinstance(e, BeforeStep | Failed | Completed)
    ]
    assert {e.step for e in entries} == {"pay"}
    assert [type(e).__name__ for e in entries] == [
        *("BeforeStep", "Failed", "BeforeStep", "Failed", "BeforeStep", "Completed")
    ]
    assert await attempts(store) == [1, 2, 3]


async def test_the_step_fails_with_the_error_of_its_last_attempt(store: MemoryStore) -> None:
    ended = await TestClock().run(of(charge).start(None), app_on(store, failing=["charge"]))
    assert str(ended.failure()) == "charge#3"


async def test_a_resume_of_a_run_that_ended_by_the_step_grants_a_new_budget(
    store: MemoryStore,
) -> None:
    app = app_on(store, failing=["charge"])
    made = of(charge)
    await TestClock().run(made.start(None, run_id="r"), app)
    app.world.failing = {"charge#4", "charge#5"}

    assert await TestClock().run(made.resume("r"), app) == Success("r:charge")
    assert await attempts(store) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("crash", "left"),
    [
        (CrashPoint(2, is_durable=False), 3),  # before the first attempt began
        (CrashPoint(2, is_durable=True), 2),  # during it
        (CrashPoint(3, is_durable=False), 2),
        (CrashPoint(3, is_durable=True), 2),  # during the delay after it
        (CrashPoint(4, is_durable=True), 1),  # during the second attempt
        (CrashPoint(5, is_durable=True), 1),
    ],
    ids=str,
)
async def test_a_crash_grants_no_new_budget(
    store: MemoryStore, crash: CrashPoint, left: int
) -> None:
    """An attempt that was cut off counts as well: it may have had its effect."""
    faulty, made = FaultyStore(store, [crash]), of(charge)
    with faulty.life():
        await TestClock().run(made.start(None, run_id="r"), app_on(faulty, failing=["charge"]))

    app = app_on(store, failing=["charge"])
    ended = await TestClock().run(made.start(None, run_id="r"), app)

    assert isinstance(ended.failure(), Broken)
    assert len(app.world.done) == left
    assert await attempts(store) == [1, 2, 3]


async def test_a_crash_during_the_delay_waits_for_the_rest_of_it(store: MemoryStore) -> None:
    made = of(charge)
    app = app_on(store, failing=["charge#1"])
    async with anyio.create_task_group() as group:

        async def drive() -> None:
            await made.start(None, run_id="r").run(app)

        group.start_soon(drive)
        with anyio.fail_after(10):
            while not any(isinstance(e, Failed) for e in await read_entries_if_any(store)):
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    [failed] = [e for e in await read_entries(store, "r") if isinstance(e, Failed)]
    assert failed.retry_at is not None

    four_seconds_before = TestClock(datetime.fromtimestamp(failed.retry_at - 4, UTC))
    assert await four_seconds_before.run(made.resume("r"), app) == Success("r:charge")
    assert four_seconds_before.monotonic() == pytest.approx(4)
    assert app.world.done == ["charge", "charge"]


async def read_entries_if_any(store: MemoryStore) -> list[Any]:
    return list(await read_entries(store, "r")) if await store.info("r") else []


async def test_a_failure_that_is_not_retryable_is_not_retried(store: MemoryStore) -> None:
    @step(retry=THREE, retryable=lambda error: str(error) != "pay#2")
    @effect(errors=Broken)
    def pay(app: App) -> None:
        app.world.note("pay")

    app = app_on(store, failing=["pay"])
    ended = await TestClock().run(of(pay).start(None), app)
    assert str(ended.failure()) == "pay#2"


async def test_a_defect_is_not_retried(store: MemoryStore) -> None:
    @step(retry=THREE)
    @effect
    def pay(app: App) -> None:
        app.world.note("pay")
        raise ZeroDivisionError

    app = app_on(store)
    with pytest.raises(ZeroDivisionError):
        await TestClock().run(of(pay).start(None), app)
    assert app.world.done == ["pay"]


async def test_each_attempt_has_its_own_time(store: MemoryStore) -> None:
    @step(retry=THREE, timeout=timedelta(seconds=5))
    def slow() -> Effect[App, str, str]:
        def look(app: App) -> Effect[App, str, str]:
            count = app.world.note("slow")
            return sleep(60 if count < 3 else 4).map(lambda _: "in time")

        return ask(App).and_then(look)

    clock, app = TestClock(), app_on(store)
    assert await clock.run(of(slow).start(None), app) == Success("in time")
    assert clock.monotonic() == 5 + 10 + 5 + 10 + 4


async def test_an_attempt_that_timed_out_fails_with_timed_out(store: MemoryStore) -> None:
    @step(timeout=5)
    def slow() -> Effect[App, str, None]:
        return sleep(60)

    made = of(slow)
    ended = await TestClock().run(made.start(None, run_id="r"), app_on(store))
    error = ended.failure()
    assert isinstance(error, TimedOut)
    assert error.seconds == 5


async def test_a_handled_timeout_is_the_same_after_a_resume(store: MemoryStore) -> None:
    @step(timeout=5)
    def slow() -> Effect[App, str, None]:
        return sleep(60)

    @step
    @effect(errors=Broken)
    def go_on(app: App) -> None:
        app.world.note("go on")

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        try:
            yield from slow()
        except TimedOut as error:
            yield from go_on()
            return f"after {error.seconds} s"
        return "in time"

    app = app_on(store, failing=["go on#1"])
    await TestClock().run(made.start(None, run_id="r"), app)
    clock = TestClock()
    assert await clock.run(made.resume("r"), app) == Success("after 5 s")
    assert clock.monotonic() == 0


async def test_an_at_most_once_step_that_timed_out_is_not_retried(store: MemoryStore) -> None:
    @step(retry=THREE, timeout=5, at_most_once=True)
    def pay() -> Effect[App, str, None]:
        return ask(App).map(lambda app: app.world.note("pay")).and_then(lambda _: sleep(60))

    made, app = of(pay), app_on(store)
    ended = await TestClock().run(made.start(None, run_id="r"), app)
    assert isinstance(ended.failure(), TimedOut)
    assert app.world.done == ["pay"]

    again = await TestClock().run(made.resume("r"), app)
    assert isinstance(again.failure(), TimedOut)
    assert app.world.done == ["pay"]


async def test_an_at_most_once_step_that_failed_is_retried(store: MemoryStore) -> None:
    """What failed has an outcome; only an unknown one is not tried again."""

    @step(retry=THREE, at_most_once=True)
    @effect(errors=Broken)
    def pay(app: App) -> str:
        return f"paid at attempt {app.world.note('pay')}"

    app = app_on(store, failing=["pay#1"])
    assert await TestClock().run(of(pay).start(None), app) == Success("paid at attempt 2")


async def test_steps_retry_outside_runs_as_well(store: MemoryStore) -> None:
    app = app_on(store, failing=["charge#1"])
    ended = await TestClock().run(charge(), app)
    assert ended.unwrap().endswith(":charge")
    assert app.world.done == ["charge", "charge"]
    app.world.failing = {"charge"}
    assert isinstance((await TestClock().run(charge(), app)).failure(), Broken)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry": RetryPolicy.constant(1)}, "needs a bound"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        step(**options)(lambda: pure(1))


# What the code of a step knows of it.


async def test_current_step_is_known_anywhere_in_the_code_of_a_step(store: MemoryStore) -> None:
    def look() -> tuple[str, int]:
        info = current_step()
        return info.step, info.attempt

    @step
    @effect
    def plain(_: App) -> tuple[str, int]:
        return look()

    @step
    @effect
    async def awaited(_: App) -> tuple[str, int]:
        await anyio.sleep(0)
        return look()

    @step
    def in_a_thread() -> Effect[App, Any, tuple[str, int]]:
        return from_blocking(lambda _: look())

    @step
    def outer() -> Do[App, Any, list[tuple[str, int]]]:
        before = yield from from_fn(lambda _: look())
        inner = yield from plain()
        after = yield from from_fn(lambda _: look())
        return [before, inner, after]

    @workflow
    def made(_: None) -> Do[App, Any, list[Any]]:
        one = yield from plain()
        two = yield from awaited()
        three = yield from in_a_thread()
        return [one, two, three, *(yield from outer())]

    assert await made.start(None, run_id="r").run(app_on(store)) == Success(
        [
            ("plain", 1),
            ("awaited", 1),
            ("in_a_thread", 1),
            ("outer", 1),
            ("outer/plain", 1),
            ("outer", 1),
        ]
    )
    with pytest.raises(LookupError, match="inside the code of a step"):
        current_step()


async def test_between_steps_no_step_is_current(store: MemoryStore) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, str]:
        yield from charge()
        return (yield from from_fn(lambda _: current_step().step))

    with pytest.raises(LookupError):
        await made.start(None).run(app_on(store))
