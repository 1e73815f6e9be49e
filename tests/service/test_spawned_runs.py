"""Spawned runs: created once, waited for durably, and cancelled with their parents unless left alone."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    Workflow,
    compensate,
    do,
    pure,
    saga,
    spawn,
    step,
    uuid,
    workflow,
)
from effectflow.checkpoint import (
    NotSerializable,
    RunCancelled,
    RunConflict,
    RunEnded,
    RunStatus,
    find_run,
)
from effectflow.checkpoint.entries import ChildStarted, TimerFired
from effectflow.effects import TimedOut, never
from effectflow.machines import Moved, Outcome, StateMachine, Transition
from effectflow.testing import FaultyStore, SaveFails, TestClock, Unavailable
from effectflow.testing.faulty_store import Fault
from tests.apps import App, Broken, note
from tests.runs.journals import cut
from tests.service.conftest import Service, both_stores
from tests.service.lives import (
    act,
    all_are,
    entries_of,
    info_of,
    killed_everywhere,
    result_of,
    suspended,
    until,
    working,
)
from tests.sweeps import EVERY

pytestmark = pytest.mark.anyio

go: Signal[str] = Signal("go", str)


@workflow
def child(name: str) -> Do[App, Broken, str]:
    return (yield from act(f"child {name}"))


@workflow
def waiting_child(name: str) -> Do[App, Broken, str]:
    yield from act(f"child {name}")
    return (yield from go.wait())


@workflow
def family(_: None) -> Do[App, Any, list[str]]:
    first = yield from spawn(child, "a")
    second = yield from spawn(child, "b")
    yield from act("spawned")
    return [(yield from first.result()), (yield from second.result())]


@workflow
def waiting_parent(_: None) -> Do[App, Any, str]:
    spawned = yield from spawn(waiting_child, "a")
    return (yield from spawned.result())


@workflow
def childless(_: None) -> Do[App, Any, str]:
    """Spawn two runs, the second of which is left alone, and wait for something else."""
    yield from spawn(waiting_child, "a", run_id="a")
    yield from spawn(waiting_child, "b", run_id="b", is_detached=True)
    who = yield from go.wait()
    if who == "fail":
        yield from note("fail")
    return who


@EVERY
async def test_a_killed_service_spawns_each_run_once_and_gets_its_result(every: int) -> None:
    async def live(service: Service) -> object:
        async with working(service, family, child, grace=0) as worker:
            handle = await worker.client.submit(family, None, run_id="r")
            return await result_of(handle)

    await killed_everywhere(live, more_than=20, every=every)


async def test_spawned_runs_have_ids_of_their_parents_and_paths(service: Service) -> None:
    async with working(service, family, child) as worker:
        handle = await worker.client.submit(family, None, run_id="r")
        assert await handle.result(timeout=10) == Success(["child a", "child b"])
    assert (await info_of(service, "r/child")).summary.parent == "r"
    started = [entry for entry in await entries_of(service, "r") if isinstance(entry, ChildStarted)]
    assert [entry.run_id for entry in started] == ["r/child", "r/child#2"]
    assert sorted(service.world.done) == ["child a", "child b", "spawned"]
    assert await service.store.mailbox("r") == []


async def test_a_spawned_run_may_have_ended_before_its_parent_asks(service: Service) -> None:
    @workflow
    def late(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(child, "a", run_id="a")
        yield from go.wait()
        return (yield from spawned.result())

    async with working(service, late, child) as worker:
        handle = await worker.client.submit(late, None, run_id="r")
        await until(service, "a", RunStatus.COMPLETED)
        await handle.send(go, "")
        assert await handle.result(timeout=10) == Success("child a")
        # Others may ask as well, and when the run has ended long ago.
        assert await worker.client.handle(child, "a").result(timeout=10) == Success("child a")


async def test_a_parent_is_suspended_until_its_spawned_run_ends_in_another_worker(
    service: Service,
) -> None:
    async with working(service, waiting_parent) as worker:
        handle = await worker.client.submit(waiting_parent, None, run_id="r")
        info = await suspended(service, "r", waits_for="run 'r/waiting_child'")
        assert info.summary.due_at is None
    async with working(service, waiting_child) as worker:
        await suspended(service, "r/waiting_child")
        await worker.client.handle(waiting_child, "r/waiting_child").send(go, "done")
        await until(service, "r/waiting_child", RunStatus.COMPLETED)
    assert await handle.status() is RunStatus.SUSPENDED
    async with working(service, waiting_parent):
        assert await handle.result(timeout=10) == Success("done")


async def test_an_attempt_that_draws_another_input_spawns_another_run(service: Service) -> None:
    @step(retry=RetryPolicy.constant(0).with_max_retries(1))
    @do
    def order(state: str) -> Do[App, Any, str]:
        number = yield from uuid()
        spawned = yield from spawn(child, f"{state} {number}")
        yield from act("order")
        return (yield from spawned.result())

    service.world.failing.add("order#1")
    async with working(service, child) as worker:
        ordering = Workflow.of_steps("ordering", [order])
        async with working(service, ordering):
            handle = await worker.client.submit(ordering, "hat", run_id="r")
            assert isinstance(await handle.result(timeout=10), Success)
        for run_id in ("r/order/child", "r/order/child after retry 1"):
            await until(service, run_id, RunStatus.COMPLETED)
    assert len(await service.store.find()) == 3


async def test_the_failure_of_a_spawned_run_is_typed_and_can_be_handled(service: Service) -> None:
    @workflow
    def handling(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(child, "a")
        ended = yield from spawned.result().result()
        assert isinstance(ended, Failure)
        error = ended.failure()
        assert isinstance(error, Broken)
        # Handled, so it stands, and a wake-up does not look again.
        yield from go.wait()
        return f"handled {error}"

    @workflow
    def failing(_: None) -> Do[App, Broken, str]:
        spawned = yield from spawn(child, "a")
        return (yield from spawned.result())

    service.world.failing.add("child a")
    async with working(service, handling, failing, child) as worker:
        handle = await worker.client.submit(handling, None, run_id="r")
        await suspended(service, "r", waits_for="signal go")
        service.world.recover()
        await handle.send(go, "")
        assert await handle.result(timeout=10) == Success("handled child a#1")
        service.world.failing.add("child a")
        failed = await worker.client.submit(failing, None, run_id="s")
        assert isinstance((await failed.result(timeout=10)).failure(), Broken)
    assert await failed.status() is RunStatus.FAILED


async def test_a_parent_handles_that_a_spawned_run_could_not_undo_its_work(
    service: Service,
) -> None:
    """Such an error of checkpointing is a failure of the child, which its workflow need not declare."""

    @workflow
    def stuck(_: None) -> Do[App, Broken, str]:
        booked = compensate(act("book"), lambda _: act("cancel"))
        return (yield from saga(booked.and_then(lambda _: act("pay"))))

    @workflow
    def handling(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(stuck, None)
        failed = (yield from spawned.result().result()).failure()
        yield from act("report")
        yield from go.wait()
        return type(failed).__name__

    service.world.failing |= {"cancel", "pay"}
    async with working(service, handling, stuck) as worker:
        handle = await worker.client.submit(handling, None, run_id="r")
        await suspended(service, "r", waits_for="signal go")
        await handle.send(go, "")
        assert await handle.result(timeout=10) == Success("CompensationFailed")
    assert service.world.done == ["book", "pay", "cancel", "report"]


async def test_the_defect_of_a_spawned_run_is_a_defect_of_its_parent(service: Service) -> None:
    service.world.crashing.add("child a")
    async with working(service, family, child) as worker:
        handle = await worker.client.submit(family, None, run_id="r")
        with pytest.raises(Exception, match="child a#1"):
            await handle.result(timeout=10)


async def test_a_run_id_that_belongs_to_another_run_is_a_failure_of_the_spawn(
    service: Service,
) -> None:
    @workflow
    def conflicting(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(child, "a", run_id="taken").result()
        assert isinstance(spawned.failure(), RunConflict)
        return (yield from act("handled"))

    await service.client.submit(child, "b", run_id="taken")
    async with working(service, conflicting) as worker:
        handle = await worker.client.submit(conflicting, None, run_id="r")
        assert await handle.result(timeout=10) == Success("handled")


@workflow
def refused(_: None) -> Do[App, Any, str]:
    """Ask for a run whose id belongs to another one, and go on without it."""
    spawned = yield from spawn(waiting_child, "mine", run_id="taken").result()
    assert isinstance(spawned.failure(), RunConflict)
    return (yield from go.wait())


async def test_a_rejected_spawn_is_rejected_in_every_life_although_the_id_is_free_by_then(
    service: Service,
) -> None:
    await service.client.submit(waiting_child, "theirs", run_id="taken", delay=1000)
    async with working(service, refused) as worker:
        handle = await worker.client.submit(refused, None, run_id="r")
        await suspended(service, "r", waits_for="signal go")
        await service.store.delete("taken")
        await handle.send(go, "went on")
        assert await handle.result(timeout=10) == Success("went on")
    assert await find_run(service.store, "taken") is None


async def test_a_rejected_spawn_that_nothing_has_handled_is_tried_again_by_a_resume(
    service: Service,
) -> None:
    @workflow
    def unhandled(_: None) -> Do[App, Any, str]:
        yield from spawn(waiting_child, "mine", run_id="taken")
        return (yield from act("spawned"))

    await service.client.submit(waiting_child, "theirs", run_id="taken", delay=1000)
    async with working(service, unhandled) as worker:
        handle = await worker.client.submit(unhandled, None, run_id="r")
        assert isinstance((await handle.result(timeout=10)).failure(), RunConflict)
    await service.store.delete("taken")
    app = App(service.checkpoints(), service.world)
    assert await unhandled.resume("r").run(app) == Success("spawned")
    assert (await info_of(service, "taken")).summary.parent == "r"


async def test_a_foreign_run_with_the_default_id_of_a_child_ends_its_parent(
    service: Service,
) -> None:
    @workflow
    def parent(_: None) -> Do[App, Broken, str]:
        spawned = yield from spawn(child, "a").result()
        return (yield from act(f"handled {spawned}"))

    await service.client.submit(child, "b", run_id="r/child")
    app = App(service.checkpoints(), service.world)
    ended = await parent.start(None, run_id="r").run(app)
    assert isinstance(ended.failure(), RunConflict)


async def test_the_run_that_has_the_id_of_a_rejected_one_is_not_cancelled_with_its_parent(
    service: Service,
) -> None:
    theirs = await service.client.submit(waiting_child, "theirs", run_id="taken")
    async with working(service, refused, waiting_child) as worker:
        await suspended(service, "taken")
        handle = await worker.client.submit(refused, None, run_id="r")
        await suspended(service, "r", waits_for="signal go")
        await handle.cancel()
        assert isinstance((await handle.result(timeout=10)).failure(), RunCancelled)
        await theirs.send(go, "unharmed")
        assert await theirs.result(timeout=10) == Success("unharmed")


@pytest.mark.parametrize("parent", ["", "other"])
async def test_a_run_that_another_one_spawned_or_none_is_not_adopted(
    service: Service, parent: str
) -> None:
    """Not even one of the same workflow and input: it would be cancelled with the run that adopts it."""

    @workflow
    def adopting(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(waiting_child, "a", run_id="taken").result()
        assert isinstance(spawned.failure(), RunConflict)
        return (yield from go.wait())

    @workflow
    def other(_: None) -> Do[App, Any, Any]:
        return (yield from spawn(waiting_child, "a", run_id="taken").map(lambda _: ""))

    async with working(service, adopting, other, waiting_child) as worker:
        client = worker.client
        if parent:
            await (await client.submit(other, None, run_id=parent)).result(timeout=10)
        theirs = await client.submit(waiting_child, "a", run_id="taken")
        await suspended(service, "taken")
        handle = await client.submit(adopting, None, run_id="r")
        await suspended(service, "r", waits_for="signal go")
        await handle.cancel()
        assert isinstance((await handle.result(timeout=10)).failure(), RunCancelled)
        await theirs.send(go, "unharmed")
        assert await theirs.result(timeout=10) == Success("unharmed")


async def test_a_run_spawned_earlier_under_the_same_id_is_cancelled_with_its_parent(
    service: Service,
) -> None:
    @workflow
    def twice(_: None) -> Do[App, Any, str]:
        yield from spawn(waiting_child, "a", run_id="a")
        yield from spawn(waiting_child, "another input", run_id="a").result()
        return (yield from go.wait())

    async with working(service, twice, waiting_child) as worker:
        handle = await worker.client.submit(twice, None, run_id="r")
        for run_id in ("r", "a"):
            await suspended(service, run_id)
        await handle.cancel()
        await until(service, "a", RunStatus.CANCELLED)


@EVERY
async def test_a_killed_service_rejects_a_spawn_once_and_for_all(every: int) -> None:
    async def live(service: Service) -> object:
        await service.client.submit(waiting_child, "theirs", run_id="taken")
        async with working(service, refused, waiting_child, grace=0) as worker:
            handle = await worker.client.submit(refused, None, run_id="r")
            await handle.send(go, "went on", idempotency_key="1")
            result = await result_of(handle)
            await suspended(service, "taken")
            return result

    await killed_everywhere(live, more_than=10, every=every)


@pytest.mark.parametrize("fault", [SaveFails(2, operation="create"), Unavailable("create", 2)])
async def test_the_body_does_not_see_an_outage_during_a_spawn_as_a_failure(
    service: Service, fault: Fault
) -> None:
    @workflow
    def hopeful(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(child, "a").result()
        if isinstance(spawned, Failure):
            return "the body has seen it"
        return (yield from spawned.unwrap().result())

    store = FaultyStore(service.store, [fault])
    service = Service(store, service.world)
    async with working(service, hopeful, child) as worker:
        handle = await worker.client.submit(hopeful, None, run_id="r")
        assert await handle.result(timeout=10) == Success("child a")
    assert not store.unmet


async def test_an_input_that_is_not_as_declared_is_rejected_before_anything_is_recorded(
    service: Service,
) -> None:
    @workflow
    def careless(_: None) -> Do[App, Any, object]:
        return (yield from spawn(child, cast("Any", 17)).result())

    started = await careless.start(None, run_id="r").run(App(service.checkpoints(), service.world))
    assert isinstance(started.failure(), NotSerializable)
    assert not any(isinstance(entry, ChildStarted) for entry in await entries_of(service, "r"))


async def test_what_was_spawned_is_cancelled_with_its_parent_or_left_alone(
    service: Service,
) -> None:
    async with working(service, childless, waiting_child) as worker:
        handle = await worker.client.submit(childless, None, run_id="r")
        for run_id in ("r", "a", "b"):
            await suspended(service, run_id)
        await handle.cancel()
        assert isinstance((await handle.result(timeout=10)).failure(), RunCancelled)
        await until(service, "a", RunStatus.CANCELLED)
        assert (await info_of(service, "b")).summary.status is RunStatus.SUSPENDED


@workflow
def patient(_: None) -> Do[App, Any, str]:
    later = yield from spawn(child, "a", run_id="a", delay=timedelta(minutes=1), priority=2)
    return (yield from later.result())


async def test_a_spawned_run_may_be_delayed(service: Service) -> None:
    clock = TestClock()
    async with service.worker(patient, child, clock=clock) as worker:
        handle = await worker.client.submit(patient, None, run_id="r")
        while (info := await find_run(service.store, "a")) is None:
            await anyio.sleep(0.01)
        await clock.advance(59)
        await anyio.sleep(0.05)
        assert (await info_of(service, "a")).summary.status is RunStatus.PENDING
        await clock.advance(2)
        assert (await handle.result(timeout=10)).unwrap() == "child a"
    assert info.summary.priority == 2


@pytest.mark.parametrize("options", [{"delay": -1}, {"delay": math.inf}, {"priority": 2**31}])
def test_a_spawn_rejects_wrong_options_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"delay must be a finite|priority must be an int"):
        spawn(child, "a", **options)


@both_stores
@pytest.mark.parametrize("ends", ["complete", "fail"])
async def test_what_was_spawned_continues_when_its_parent_completes_or_fails(
    service: Service, ends: str
) -> None:
    service.world.failing.add("fail")
    async with working(service, childless, waiting_child) as worker:
        handle = await worker.client.submit(childless, None, run_id="r")
        for run_id in ("r", "a", "b"):
            await suspended(service, run_id)
        await handle.send(go, ends)
        await handle.result(timeout=10)
        await anyio.sleep(0.05)
        for run_id in ("a", "b"):
            assert (await info_of(service, run_id)).summary.status is RunStatus.SUSPENDED
            spawned = worker.client.handle(waiting_child, run_id)
            await spawned.send(go, "on")
            assert await spawned.result(timeout=10) == Success("on")


@EVERY
async def test_a_killed_service_cancels_what_was_spawned(every: int) -> None:
    async def live(service: Service) -> object:
        async with working(service, childless, waiting_child, grace=0) as worker:
            handle = await worker.client.submit(childless, None, run_id="r")
            if not (await handle.status()).has_ended:
                await all_are(service, RunStatus.SUSPENDED, RunStatus.CANCELLED)
                with suppress(RunEnded):
                    await handle.cancel()
            ended = await result_of(handle)
            await until(service, "a", RunStatus.CANCELLED)
            await suspended(service, "b")
            return ended

    await killed_everywhere(live, more_than=20, every=every)


async def test_a_run_that_waits_for_a_cancelled_one_fails_and_names_it(service: Service) -> None:
    async with working(service, waiting_parent, waiting_child) as worker:
        handle = await worker.client.submit(waiting_parent, None, run_id="r")
        await suspended(service, "r/waiting_child")
        await worker.client.handle(waiting_child, "r/waiting_child").cancel()
        error = (await handle.result(timeout=10)).failure()
        assert isinstance(error, RunCancelled)
        assert error.run_id == "r/waiting_child"
    assert await handle.status() is RunStatus.FAILED


def open_door(_: str) -> Effect[App, Broken, Outcome[str]]:
    return pure(Moved("open"))


door: StateMachine[App, Broken, str] = StateMachine(
    "door",
    initial="closed",
    transitions=[Transition("open", "closed", "open", open_door)],
    final={"open"},
)


async def test_a_machine_is_spawned_and_yields_a_machine(service: Service) -> None:
    @workflow
    def visit(_: None) -> Do[App, Any, str]:
        spawned = yield from spawn(door, None)
        machine = yield from spawned.result()
        return machine.current

    async with working(service, visit, door) as worker:
        handle = await worker.client.submit(visit, None, run_id="r")
        assert await handle.result(timeout=10) == Success("open")


@workflow
def hurrying() -> Do[App, Any, str]:
    yield from spawn(child, "a")
    waited = never().within(App).timeout(0.01)
    return (yield from waited.recover(TimedOut, lambda _: act("late")))


async def test_a_timeout_that_began_after_a_spawn_fires_again_in_its_place(
    service: Service,
) -> None:
    """It has no entry at its beginning that would show that the run was spawned."""
    app = App(service.checkpoints(), service.world)
    await hurrying.start(run_id="r").run_or_raise(app)
    entries = await entries_of(service, "r")
    for fired, entry in enumerate(entries, 1):
        if isinstance(entry, TimerFired):
            store = await cut(service.store, fired)
            resumed = await hurrying.resume("r").run(App(Checkpoints(store), service.world))
            assert resumed == Success("late")
            return
    raise AssertionError(entries)
