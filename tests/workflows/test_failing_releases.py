"""In a durable run, too, a release that fails is visible, however its use has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    TimedOut,
    bracket,
    fail,
    par,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, both_backends, cut_off

pytestmark = pytest.mark.anyio

AnyEffect = Effect[App, Any, Any]

LOGGED = "a finalizer failed in a flow that was cancelled: 'STUCK'"


def stuck(_: str) -> AnyEffect:
    return fail("STUCK")


@step
def stuck_step(_: str) -> Effect[App, str, None]:
    return fail("STUCK")


def used(release: Callable[[str], AnyEffect]) -> AnyEffect:
    return bracket(pure("r"), release, lambda _: sleep(60))


def late(end: Effect[object, Any, Any]) -> AnyEffect:
    return sleep(0.01).and_then(lambda _: end)


ENDS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda use: use.timeout(0.01),
    "failed sibling": lambda use: par(use, late(fail("no"))),
    "lost race": lambda use: race([use, late(fail("no"))]),
}


@both_backends
@pytest.mark.parametrize("release", [stuck, stuck_step])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_release_that_fails_after_a_cancellation_is_in_the_trail(
    store: MemoryStore,
    release: Callable[[str], AnyEffect],
    end: Callable[[AnyEffect], AnyEffect],
    caplog: pytest.LogCaptureFixture,
) -> None:
    @workflow
    def whole(_: str) -> Do[App, Any, object]:
        return (yield from end(used(release)))

    @workflow
    def inside(_: str) -> Do[App, Any, object]:
        return [*(yield from end(used(release)).traced().result()).failure().suppressed]

    traced: Any = (await whole.start("input").traced().run(app_on(store))).failure()
    handled: Any = (await inside.start("input").run(app_on(store))).unwrap()

    assert traced.suppressed == ("STUCK",)
    assert handled == ["STUCK"]
    assert caplog.messages == [LOGGED] * 2


@both_backends
async def test_a_release_that_fails_after_the_timeout_of_a_step_is_in_the_trail(
    store: MemoryStore,
) -> None:
    @step(timeout=0.01)
    def limited() -> Effect[App, str | TimedOut, None]:
        return used(stuck)

    @workflow
    def whole(_: str) -> Do[App, Any, object]:
        return (yield from limited())

    traced: Any = (await whole.start("input").traced().run(app_on(store))).failure()

    assert isinstance(traced.error, TimedOut)
    assert traced.suppressed == ("STUCK",)


@both_backends
@pytest.mark.parametrize("release", [stuck, stuck_step])
async def test_a_release_that_fails_in_a_race_that_was_won_is_logged(
    store: MemoryStore, release: Callable[[str], AnyEffect], caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    def whole(_: str) -> Do[App, Any, object]:
        return (yield from race([used(release), late(pure("won"))]))

    assert await whole.start("input").run(app_on(store)) == Success("won")
    assert caplog.messages == [LOGGED]


@both_backends
async def test_a_release_that_fails_after_a_cancellation_from_outside_is_logged(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    def whole(_: str) -> Do[App, Any, object]:
        return (yield from used(stuck))

    await cut_off(whole.start("input"), app_on(store))

    assert caplog.messages == [LOGGED]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_release_that_fails_after_a_native_cancellation_is_logged(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    def whole(_: str) -> Do[App, Any, object]:
        return (yield from used(lambda _: late(fail("STUCK"))))

    task = asyncio.create_task(whole.start("input").run(app_on(store)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert caplog.messages == [LOGGED]
