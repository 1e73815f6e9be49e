"""In a durable run, too, a use does not start after a cancellation during its acquisition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from effectflow import Effect, TimedOut, bracket, fail, from_async, from_fn, par, race, sleep, step
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, app_on, both_backends
from tests.workflows.journals import AnyEffect, act, hang, made_of, stopped

pytestmark = [pytest.mark.anyio, both_backends]


def noting(action: str) -> AnyEffect:
    return from_fn(lambda app: app.world.note(action))


@step
def opened_in_a_step() -> Effect[App, Any, None]:
    return sleep(10).and_then(lambda _: noting("acquire")).map(lambda _: None)


def opened() -> AnyEffect:
    return sleep(10).and_then(lambda _: noting("acquire"))


CANCELLATIONS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(1).result().map(repr),
    "failed sibling": lambda effect: par(effect, sleep(1).and_then(lambda _: fail("no"))),
    "lost race": lambda effect: race([effect, sleep(1)]).map(repr),
}
each_cancellation = pytest.mark.parametrize("cancel", CANCELLATIONS.values(), ids=CANCELLATIONS)
USES: dict[str, Callable[[object], AnyEffect]] = {
    "plain": lambda _: noting("charge"),
    "step": lambda _: act("charge"),
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@each_cancellation
@each_use
@pytest.mark.parametrize("acquire", [opened, opened_in_a_step])
async def test_a_use_does_not_start_after_a_cancellation_of_its_acquisition(
    store: MemoryStore,
    cancel: Callable[[AnyEffect], AnyEffect],
    use: Callable[[object], AnyEffect],
    acquire: Callable[[], AnyEffect],
) -> None:
    app = app_on(store)
    held = bracket(acquire(), lambda _: noting("release"), use)

    await TestClock().run(made_of(lambda: cancel(held)).start(None), app)

    assert app.world.done == ["acquire", "release"]


@each_use
async def test_a_use_does_not_start_after_a_cancellation_from_outside(
    store: MemoryStore, use: Callable[[object], AnyEffect]
) -> None:
    app = app_on(store)
    began = anyio.Event()

    async def acquire(_: object) -> None:
        began.set()
        await anyio.sleep(0.02)
        app.world.note("acquire")

    made = made_of(lambda: bracket(from_async(acquire), lambda _: noting("release"), use))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.start(None).run, app)
        await began.wait()
        tasks.cancel_scope.cancel()

    assert app.world.done == ["acquire", "release"]


@pytest.mark.parametrize("acquire", [sleep(1000), hang("acquire")], ids=["plain", "step"])
async def test_a_timeout_of_the_acquisition_ends_one_that_hangs(
    store: MemoryStore, acquire: AnyEffect
) -> None:
    app = app_on(store)
    held = bracket(acquire.timeout(5), lambda _: noting("release"), lambda _: noting("charge"))

    result: Any = await TestClock().run(made_of(lambda: held.timeout(1)).start(None), app)
    assert isinstance(result.failure(), TimedOut)
    await stopped(made_of(lambda: held).start(None), app, seconds=10)
    result = await TestClock().run(made_of(lambda: held).start(None), app)
    assert result.failure().seconds == 5
    assert set(app.world.done) <= {"acquire"}
