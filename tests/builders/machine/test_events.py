"""What observers are told of a state machine, in a durable run and without a store."""

from __future__ import annotations

from typing import Any

import pytest

from effectflow import Checkpoints
from effectflow.checkpoint import CheckpointEvent
from effectflow.effects import never
from effectflow.machines import StateMachine, Transition, TransitionEnded, TransitionStarted
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver
from tests.apps import both_backends, cut_off
from tests.builders.machine.orders import App, Declined, World, only, orders
from tests.builders.machine.timeline import Timeline

pytestmark = pytest.mark.anyio


def watched(**world: Any) -> tuple[App, RecordingObserver]:
    observer = RecordingObserver()
    return App(World(**world), Checkpoints(MemoryStore(), observers=[observer])), observer


def transitions(observer: RecordingObserver) -> list[CheckpointEvent]:
    kinds = (TransitionStarted, TransitionEnded)
    return [event for event in observer.events if isinstance(event, kinds)]


def expected(run_id: str | None) -> list[CheckpointEvent]:
    first = (run_id, "orders", "charge", "NEW", 1, "charge")
    second = (run_id, "orders", "charge", "NEW", 2, "charge#2")
    last = (run_id, "orders", "ship", "PAID", 1, "ship")
    return [
        TransitionStarted(*first),
        TransitionEnded(*first, "retry"),
        TransitionStarted(*second),
        TransitionEnded(*second, "moved", "PAID"),
        TransitionStarted(*last),
        TransitionEnded(*last, "moved", "SHIPPED"),
    ]


@both_backends
async def test_observers_see_each_attempt_of_a_durable_run() -> None:
    app, observer = watched(busy=1)
    await orders.start(run_id="r").run_or_raise(app, clock=Timeline())
    assert transitions(observer) == expected("r")


@both_backends
async def test_a_machine_without_a_store_tells_the_observers_of_its_environment() -> None:
    app, observer = watched(busy=1)
    await orders.run_until_final().run_or_raise(app, clock=Timeline())
    assert observer.events == expected(None)
    assert await app.checkpoints.store.find() == []


async def test_a_machine_runs_in_an_environment_without_checkpoints() -> None:
    assert (await only().run_until_final().run_or_raise(None)).current == "end"


async def test_a_resume_does_not_report_skipped_attempts_again() -> None:
    app, observer = watched(busy=99)
    await orders.start(run_id="r").run(app, clock=Timeline())
    charge = ("r", "orders", "charge", "NEW", 4, "charge#4")
    assert transitions(observer)[-1] == TransitionEnded(*charge, "failed")
    observer.events.clear()
    app.world.busy = 0

    await orders.resume("r").run_or_raise(app, clock=Timeline())

    assert transitions(observer)[:2] == [
        TransitionStarted(*charge),
        TransitionEnded(*charge, "moved", "PAID"),
    ]


async def test_observers_see_aborts_and_failures() -> None:
    app, observer = watched(has_truck=False)
    await orders.run_until_final().run_or_raise(app)
    ship = (None, "orders", "ship", "PAID", 1, "ship")
    assert observer.events[-1] == TransitionEnded(*ship, "abort", "LOST")

    app, observer = watched(is_declined=True)
    assert isinstance((await orders.run_until_final().run(app)).failure(), Declined)
    charge = (None, "orders", "charge", "NEW", 1, "charge")
    assert observer.events[-1] == TransitionEnded(*charge, "failed")


async def test_observers_see_an_interrupted_attempt() -> None:
    app, observer = watched()
    endless: StateMachine[App, Any, str] = StateMachine(
        "endless",
        initial="begun",
        transitions=[Transition("wait", "begun", "over", lambda _: never())],
        final={"over"},
    )
    await cut_off(endless.run_until_final(), app)

    wait = (None, "endless", "wait", "begun", 1, "wait")
    assert observer.events[-1] == TransitionEnded(*wait, "interrupted")
