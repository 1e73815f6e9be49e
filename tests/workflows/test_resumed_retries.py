"""A retry that is resumed decides as it did at first, and goes on where it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    ask,
    fail,
    pure,
    step,
    suspend,
    workflow,
)
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, app_on, last

pytestmark = pytest.mark.anyio


@step
def refusing(times: int) -> Effect[App, str, str]:
    """Fails so many times in all, and succeeds from then on."""

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
async def test_what_a_retry_decided_does_not_depend_on_the_delay_that_a_resume_draws(
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

    app = app_on(store, failing=["last"])
    assert await TestClock().run(made.start(None, run_id="r"), app) == Failure("crash here")
    before = list(app.world.done)
    app.world.recover()
    assert await TestClock().run(made.resume("r"), app) == Success(expected)
    assert app.world.done == before, "a resume runs nothing again"


async def test_a_retry_that_ended_the_run_is_tried_once_more_by_each_resume(
    store: MemoryStore,
) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, str]:
        policy = RetryPolicy.constant(10).with_max_retries(1)
        return (yield from suspend(lambda: refusing(3)).retry(policy))

    app = app_on(store, failing=["last"])
    exhausted: Any = await TestClock().run(made.start(None, run_id="r"), app)
    assert (exhausted.failure().attempts, len(app.world.done)) == (2, 2)
    exhausted = await TestClock().run(made.resume("r"), app)
    assert (exhausted.failure().attempts, len(app.world.done)) == (2, 3)
    assert await TestClock().run(made.resume("r"), app) == Success("attempt 4")


async def test_the_time_that_a_retry_has_spent_counts_in_a_resume(store: MemoryStore) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, str]:
        policy = RetryPolicy.constant(10).with_max_elapsed(25)
        return (yield from suspend(lambda: refusing(99)).retry(policy))

    app = app_on(store, failing=["last"])
    clock = TestClock()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(made.start(None, run_id="r").run, app, clock=clock))
        await clock.advance(15)
        group.cancel_scope.cancel()
    assert len(app.world.done) == 2
    later = TestClock(clock.now())
    given_up: Any = await later.run(made.resume("r"), app)
    assert len(app.world.done) == 3
    assert (given_up.failure().attempts, given_up.failure().elapsed) == (3, 20.0)
