"""`Workflow.plan` of runs that wait for signals and for spawned runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from effectflow import Do, Effect, Signal, Workflow, compensate, do, saga, spawn, workflow
from effectflow.checkpoint import ResumePlan, RunNotFound, RunQuery, RunStatus
from effectflow.effects.scope import Scope
from effectflow.runs.plan import planned_undos
from effectflow.runs.stored_run import Place
from tests.apps import App, Broken
from tests.service.conftest import Service
from tests.service.lives import act, left_suspended, suspended, until, working

pytestmark = pytest.mark.anyio

go: Signal[str] = Signal("go", str)


@workflow
def asking(_: None) -> Do[App, Broken, str]:
    yield from act("ask")
    answers = [(yield from go.wait()), (yield from go.wait())]
    return (yield from act(f"write {answers}"))


@do
def held() -> Do[App, Broken, str]:
    yield from compensate(act("book"), lambda _: act("cancel"))
    yield from go.wait().timeout(3600).fallback("")
    return (yield from act("pay"))


@workflow
def holding(_: None) -> Do[App, Broken, str]:
    return (yield from saga(held()))


@workflow
def child(name: str) -> Do[App, Broken, str]:
    yield from go.wait()
    return (yield from act(f"child {name}"))


@workflow
def parent(_: None) -> Do[App, Any, str]:
    spawned = yield from spawn(child, "a", run_id="a")
    name = yield from spawned.result()
    yield from go.wait()
    yield from spawn(child, name, run_id="b")
    return (yield from act("end"))


async def plan_of(service: Service, planned: Workflow[App, Any, Any, Any]) -> ResumePlan:
    """Return the plan of the run "r", after a check that it changed nothing."""

    async def seen() -> Sequence[object]:
        store = service.store
        found = sorted(await store.find(RunQuery()), key=lambda run: run.run_id)
        return found, await store.read("r"), await store.mailbox("r"), list(service.world.done)

    before = await seen()
    plan: Effect[App, Any, ResumePlan] = planned.plan("r")
    made = await plan.run_or_raise(App(service.checkpoints(), service.world))
    assert await seen() == before
    return made


async def test_a_plan_waits_for_the_signals_that_were_not_sent(service: Service) -> None:
    handle = await left_suspended(service, asking)
    assert await plan_of(service, asking) == ResumePlan(skip=("act",), waiting=("signal:go",))
    await handle.send(go, "yes")
    assert await plan_of(service, asking) == ResumePlan(skip=("act",), waiting=("signal:go#2",))
    await handle.send(go, "no")
    assert await plan_of(service, asking) == ResumePlan(skip=("act",), start=("act#2",))


async def test_a_saga_that_waits_is_not_planned_to_be_undone(service: Service) -> None:
    handle = await left_suspended(service, holding)
    plan = await plan_of(service, holding)
    assert (plan.start, plan.waiting) == ((), ("signal:go",))
    await handle.send(go, "")
    plan = await plan_of(service, holding)
    assert (plan.start, plan.waiting) == (("act#2",), ())


async def test_a_plan_waits_for_spawned_runs_and_creates_none(service: Service) -> None:
    async with working(service, parent, child) as worker:
        handle = await worker.client.submit(parent, None, run_id="r")
        await suspended(service, "a")
        await suspended(service, "r")
    assert (await plan_of(service, parent)).waiting == ("child.result",)

    async with working(service, child) as worker:
        await worker.client.handle(child, "a").send(go, "")
        await until(service, "a", RunStatus.COMPLETED)
    assert (await plan_of(service, parent)).waiting == ("signal:go",)

    await handle.send(go, "")
    plan = await plan_of(service, parent)
    assert (plan.start, plan.waiting) == (("child#2",), ())
    with pytest.raises(RunNotFound):
        await service.client.handle(child, "b").status()


async def test_a_plan_tells_that_the_failure_of_a_spawned_run_comes_next(service: Service) -> None:
    @workflow
    def forgiving(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(child, "a", run_id="a")
        return (yield from spawned.result().within(App).or_else(lambda _: act("forgive")))

    async with working(service, forgiving, child) as worker:
        await worker.client.submit(forgiving, None, run_id="r")
        await suspended(service, "a")
        await suspended(service, "r")
    service.world.failing.add("child a")
    async with working(service, child) as worker:
        await worker.client.handle(child, "a").send(go, "")
        await until(service, "a", RunStatus.FAILED)
    assert (await plan_of(service, forgiving)).start == ("act",)


async def test_a_plan_knows_the_request_to_cancel_that_waits(service: Service) -> None:
    handle = await left_suspended(service, holding, asking)
    await handle.send(go, "")
    await handle.cancel()
    plan = await plan_of(service, holding)
    # The message came first, so the second step was next when the request came.
    assert (plan.skip, plan.start, plan.waiting) == (("act",), ("act#3",), ())

    async with working(service, holding):
        await until(service, "r", RunStatus.CANCELLED)
    assert service.world.done == ["book", "cancel"]


async def test_a_plan_of_a_cancelled_run_that_leaves_nothing_to_undo_begins_nothing(
    service: Service,
) -> None:
    handle = await left_suspended(service, asking)
    await handle.cancel()
    assert await plan_of(service, asking) == ResumePlan(skip=("act",))


@do
def booked(what: str) -> Do[App, Broken, str]:
    return (yield from compensate(act(what), give_back))


def give_back(what: str) -> Effect[App, Broken, str]:
    return act(f"cancel {what}")


@do
def with_car() -> Do[App, Broken, None]:
    yield from booked("car")
    yield from go.wait()


@do
def with_train() -> Do[App, Broken, None]:
    yield from booked("train")
    yield from saga(with_car())


@workflow
def trip(_: None) -> Do[App, Broken, None]:
    yield from saga(with_train())


async def test_what_a_cancellation_would_undo_is_known_before(service: Service) -> None:
    await left_suspended(service, trip)
    env = App(service.checkpoints(), service.world)
    place = Place.of(trip.blueprint, env.checkpoints, env, Scope())
    undone = await planned_undos(place, "r")
    assert undone == ("give_back of 'car'", "give_back of 'train'")
    assert service.world.done == ["train", "car"]
