"""Workers take what is due, within their limits, and leave no run behind when they end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, Queue, bracket, do, par, pure, sleep, step, workflow
from effectflow.checkpoint import (
    Batch,
    Lease,
    RunQuery,
    RunStatus,
    ServiceStore,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import begin_claim, end_claim
from effectflow.checkpoint.store import Claimed, DueRuns
from effectflow.effects import from_async
from effectflow.service import App, BadEnvironment, Worker
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests import apps
from tests.apps import Broken, both_backends, note
from tests.service.conftest import Service, both_stores

pytestmark = pytest.mark.anyio


@workflow
def act(action: str) -> Do[apps.App, Broken, int]:
    return (yield from note(action))


@dataclass
class Gate:
    """A step passes when it is open. `inside` is the number of steps that wait there."""

    opened: anyio.Event
    inside: int = 0
    most: int = 0

    async def wait(self, world: apps.World) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.opened.wait()
            world.note("passed")
        finally:
            self.inside -= 1

    async def until(self, inside: int) -> None:
        with anyio.fail_after(10):
            while self.inside < inside:
                await anyio.sleep(0.005)


gates: dict[str, Gate] = {}


@pytest.fixture
def gate(anyio_backend: str) -> Gate:
    gates["gate"] = Gate(anyio.Event())
    return gates["gate"]


@step
def pass_gate() -> Effect[apps.App, Broken, None]:
    return from_async(lambda app: gates["gate"].wait(app.world))


@step
def finish() -> Effect[apps.App, Broken, int]:
    return note("done")


@workflow
def guarded(_: None) -> Do[apps.App, Broken, int]:
    yield from pass_gate()
    return (yield from finish())


@workflow
def guarding(_: None) -> Do[apps.App, Broken, int]:
    return (yield from bracket(pure(1), lambda _: guarded.call(None), pure))


async def statuses(service: Service) -> dict[str, str]:
    found = await service.client.find(RunQuery(limit=None))
    return {info.run_id: str(info.summary.status) for info in found}


async def ended(service: Service, *, within: float = 10) -> dict[str, str]:
    """Wait until every run is completed or has failed."""
    with anyio.fail_after(within):
        while not set((await statuses(service)).values()) <= {"completed", "failed"}:
            await anyio.sleep(0.01)
    return await statuses(service)


async def assert_nothing_is_held(service: Service) -> None:
    assert [
        info.lease for info in await service.client.find(RunQuery(limit=None)) if info.lease
    ] == []


@both_stores
@both_backends
async def test_a_worker_drives_what_was_submitted_before_and_after_it_began(
    service: Service,
) -> None:
    await service.client.submit(act, "before", run_id="before")
    async with service.worker(act) as worker:
        await worker.client.submit(act, "after", run_id="after")
        assert await ended(service) == {"before": "completed", "after": "completed"}
    await assert_nothing_is_held(service)


async def test_a_submitted_run_begins_at_once_and_not_at_the_next_look(
    service: Service, seldom_looks: None
) -> None:
    async with service.worker(act) as worker:
        await anyio.sleep(0.1)
        assert await (await worker.client.submit(act, "a")).result(timeout=30) == Success(1)


class Looked(ForwardingStore):
    """Counts the looks of workers. `taken` tells in which one each run was taken."""

    def __init__(self, store: ServiceStore) -> None:
        super().__init__(store)
        self.looks = 0
        self.taken: dict[str, int] = {}

    async def claim_due(self, due: DueRuns) -> Claimed:
        self.looks += 1
        claimed = await super().claim_due(due)
        self.taken |= {taken.lease.run_id: self.looks for taken in claimed.runs}
        return claimed


@both_stores
async def test_the_run_of_a_dead_process_continues_at_the_next_look(service: Service) -> None:
    store = Looked(service.store)
    dead = begin_claim()
    await service.client.submit(act, "a", run_id="r")
    await store.claim("r", owner=str(dead), seconds=60)
    async with Service(store, service.world).worker(act) as worker:
        with anyio.fail_after(10):
            while store.looks < 2:
                await anyio.sleep(0.01)
        assert await worker.client.handle(act, "r").status() is RunStatus.PENDING
        end_claim(dead, is_released=False)
        # One look may be in progress.
        before = store.looks
        assert await worker.client.handle(act, "r").result(timeout=10) == Success(1)
    assert store.taken["r"] <= before + 1


async def test_a_worker_drives_at_most_as_many_runs_as_its_limit(
    service: Service, gate: Gate
) -> None:
    for number in range(7):
        await service.client.submit(guarded, None, run_id=f"{number}")
    async with service.worker(guarded, limit=3):
        await gate.until(inside=3)
        await anyio.sleep(0.1)
        assert gate.inside == 3
        gate.opened.set()
        assert set((await ended(service)).values()) == {"completed"}
    assert gate.most == 3


async def test_a_limit_holds_across_workers(service: Service, gate: Gate) -> None:
    queues = [Queue("guarded", 2)]
    for number in range(5):
        await service.client.submit(guarded, None, run_id=f"{number}")
    await service.client.submit(act, "free", run_id="free")
    async with (
        service.worker(guarded, act, queues=queues),
        service.worker(guarded, act, queues=queues),
    ):
        await gate.until(inside=2)
        await service.client.handle(act, "free").result()
        await anyio.sleep(0.1)
        assert gate.inside == 2
        gate.opened.set()
        await ended(service)
    assert gate.most == 2


@both_stores
async def test_a_limit_per_second_holds_across_workers(service: Service) -> None:
    queues = [Queue("act", per_second=4)]
    for number in range(5):
        await service.client.submit(act, "a", run_id=f"{number}")
    began = anyio.current_time()
    async with service.worker(act, queues=queues), service.worker(act, queues=queues):
        await ended(service)
    assert anyio.current_time() - began >= 0.9


@both_stores
@both_backends
async def test_two_workers_drive_each_run_once(service: Service) -> None:
    for number in range(60):
        await service.client.submit(act, f"{number}", run_id=f"{number}")
    async with service.worker(act, limit=5), service.worker(act, limit=5):
        await ended(service)
    assert sorted(service.world.done) == sorted(map(str, range(60)))
    await assert_nothing_is_held(service)


async def test_a_worker_leaves_the_runs_of_other_workflows_alone(service: Service) -> None:
    await service.client.submit(guarded, None, run_id="r")
    async with service.worker(act):
        await anyio.sleep(0.1)
    assert await statuses(service) == {"r": "pending"}


@both_backends
async def test_a_step_in_progress_may_end_when_its_worker_is_left(
    service: Service, gate: Gate
) -> None:
    async def open_soon() -> None:
        await anyio.sleep(0.1)
        await service.client.submit(guarded, None, run_id="not taken")
        gate.opened.set()

    await service.client.submit(guarded, None, run_id="r")
    async with anyio.create_task_group() as tasks, service.worker(guarded, grace=10):
        await gate.until(inside=1)
        tasks.start_soon(open_soon)
    # The step is complete, and nothing was begun after it.
    assert service.world.done == ["passed"]
    assert await statuses(service) == {"r": "interrupted", "not taken": "pending"}
    await assert_nothing_is_held(service)
    async with service.worker(guarded) as worker:
        for run_id in ("r", "not taken"):
            await worker.client.handle(guarded, run_id).result()
    assert await statuses(service) == {"r": "completed", "not taken": "completed"}
    assert sorted(service.world.done) == ["done", "done", "passed", "passed"]


@both_backends
async def test_an_acquisition_in_progress_may_end_with_all_inside_it_when_its_worker_is_left(
    service: Service, gate: Gate
) -> None:
    async def open_soon() -> None:
        await anyio.sleep(0.1)
        gate.opened.set()

    await service.client.submit(guarding, None, run_id="r")
    async with anyio.create_task_group() as tasks, service.worker(guarding, grace=10):
        await gate.until(inside=1)
        tasks.start_soon(open_soon)
    # No cancellation reaches what it calls, so that could not wait for another worker.
    assert service.world.done == ["passed", "done"]
    assert await statuses(service) == {"r": "completed"}
    await assert_nothing_is_held(service)


@step(at_most_once=True)
@do
def pass_gate_once() -> Do[apps.App, Broken, int]:
    yield from pass_gate()
    return (yield from guarded.call(None))


@workflow
def guarded_once(_: None) -> Do[apps.App, Broken, int]:
    return (yield from pass_gate_once())


async def test_an_at_most_once_step_may_end_with_all_inside_it_when_its_worker_is_left(
    service: Service, gate: Gate
) -> None:
    async def open_soon() -> None:
        await anyio.sleep(0.1)
        gate.opened.set()

    await service.client.submit(guarded_once, None, run_id="r")
    async with anyio.create_task_group() as tasks, service.worker(guarded_once, grace=10):
        await gate.until(inside=1)
        tasks.start_soon(open_soon)
    assert service.world.done == ["passed", "passed", "done"]
    async with service.worker(guarded_once) as worker:
        assert await worker.client.handle(guarded_once, "r").result(timeout=10) == Success(1)


@both_stores
@both_backends
async def test_a_step_that_does_not_end_in_time_is_interrupted_and_continues_elsewhere(
    service: Service, gate: Gate
) -> None:
    async with service.worker(guarded, grace=0.05) as worker:
        handle = await worker.client.submit(guarded, None, run_id="r")
        await gate.until(inside=1)
    assert await handle.status() is RunStatus.INTERRUPTED
    await assert_nothing_is_held(service)
    gate.opened.set()
    async with service.worker(guarded):
        assert await handle.result() == Success(1)


async def test_a_worker_that_is_hurried_as_it_ends_says_first_that_it_ends(
    service: Service, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "effectflow.service.worker")
    async with service.worker(guarded, grace=600) as worker:
        await worker.client.submit(guarded, None)
        await gate.until(inside=1)
        worker.hurry("SIGTERM again")  # as the second of two signals at once does
    assert caplog.messages == [
        "the worker ended: steps in progress may end, and no other begins",
        "SIGTERM again: steps in progress are interrupted",
    ]


@both_backends
async def test_cancelling_the_scope_of_a_worker_still_grants_its_steps_their_grace(
    service: Service, gate: Gate
) -> None:
    async def open_soon() -> None:
        await anyio.sleep(0.1)
        gate.opened.set()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with service.worker(guarded, grace=10) as worker:
                await worker.client.submit(guarded, None, run_id="r")
                await gate.until(inside=1)
                tasks.start_soon(open_soon)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert service.world.done == ["passed"]
    await assert_nothing_is_held(service)


@both_backends
async def test_an_exception_of_the_code_in_a_worker_is_raised_unchanged(service: Service) -> None:
    with pytest.raises(ZeroDivisionError):
        async with service.worker(act):
            raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt):
        async with service.worker(act):
            raise KeyboardInterrupt


class Failing(MemoryStore):
    """A store whose claims fail while it is broken; they may have taken effect."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False
        self.errors = 0

    async def claim_due(self, due: DueRuns) -> Claimed:
        claimed = await super().claim_due(due)
        if self.is_broken:
            self.errors += 1
            raise StoreUnavailable("the store", "it is down")
        return claimed


async def test_a_worker_outlives_errors_of_its_store_and_logs_them_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service(Failing())
    assert isinstance(service.store, Failing)
    with caplog.at_level(logging.WARNING, "effectflow"):
        async with service.worker(act):
            service.store.is_broken = True
            await service.client.submit(act, "a", run_id="r")
            with anyio.fail_after(10):
                while service.store.errors < 3:
                    await anyio.sleep(0.01)
            service.store.is_broken = False
            # A claim that was cut off does not keep the run from going on.
            await ended(service, within=5)
    messages = [record.getMessage() for record in caplog.records]
    assert ["it is down" in message for message in messages].count(True) == 1
    assert messages[-1].startswith("a worker works again after")


async def test_the_environment_is_made_once_and_closed_at_the_end(service: Service) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def opened(checkpoints: Checkpoints) -> AsyncIterator[apps.App]:
        told.append("open")
        yield apps.App(checkpoints, service.world)
        told.append("closed")

    @contextmanager
    def entered(checkpoints: Checkpoints) -> Any:
        told.append("open")
        yield apps.App(checkpoints, service.world)
        told.append("closed")

    async def awaited(checkpoints: Checkpoints) -> apps.App:
        told.extend(["open", "closed"])
        return apps.App(checkpoints, service.world)

    for environment in (opened, entered, awaited):
        app = App([act], environment=environment, checkpoints=service.checkpoints())
        async with Worker(app) as worker:
            for action in ("a", "b"):
                await (await worker.client.submit(act, action)).result()
        assert told == ["open", "closed"]
        told.clear()


async def test_an_environment_that_cannot_be_made_ends_the_worker_before_it_takes_anything(
    service: Service,
) -> None:
    def failing(checkpoints: Checkpoints) -> apps.App:
        raise ConnectionError("no database")

    @dataclass(frozen=True)
    class Bare:
        checkpoints: Checkpoints

    await service.client.submit(act, "a", run_id="r")
    for environment, message in (
        (failing, "raised ConnectionError: no database"),
        (Bare, r"'act' needs an environment with world \(App\)"),
        (lambda _: 5, "should return an object"),
    ):
        make: Any = environment
        app = App([act], environment=make, checkpoints=service.checkpoints())
        with pytest.raises(BadEnvironment, match=message):
            async with Worker(app):
                pytest.fail("the worker began")
    assert await statuses(service) == {"r": "pending"}


def test_an_app_rejects_workflows_and_schedules_with_the_same_name() -> None:
    checkpoints = Checkpoints(MemoryStore())
    with pytest.raises(ValueError, match="two workflows named 'act'"):
        App([act, act], environment=apps.App, checkpoints=checkpoints)
    with pytest.raises(TypeError, match="an App takes workflows"):
        App([act.body], environment=apps.App, checkpoints=checkpoints)  # type: ignore[list-item]
    app = App([act], environment=apps.App, checkpoints=checkpoints)
    with pytest.raises(ValueError, match="limit"):
        Worker(app, limit=0)
    with pytest.raises(ValueError, match="max_crashes"):
        Worker(app, max_crashes=2)


@workflow
def patient(seconds: float) -> Do[apps.App, Broken, int]:
    yield from sleep(seconds)
    return (yield from note("awake"))


class HeldAtOnce(ForwardingStore):
    """It holds the append with the beginning of the step `once` back until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_held, self.go_on = anyio.Event(), anyio.Event()

    async def append(self, lease: Lease, batch: Batch) -> None:
        if any(b'/once"' in body for body in batch.bodies) and not self.go_on.is_set():
            self.is_held.set()
            await self.go_on.wait()
        await super().append(lease, batch)


@both_backends
async def test_a_step_whose_beginning_is_being_saved_when_its_worker_is_left_is_executed() -> None:
    @step(at_most_once=True)
    def once() -> Effect[apps.App, Broken, int]:
        return note("once")

    @workflow
    def beside(_: None) -> Do[apps.App, Broken, object]:
        return (yield from par(once(), sleep(60)))

    async def go_on_soon() -> None:
        await anyio.sleep(0.1)
        store.go_on.set()

    async with HeldAtOnce() as store:
        service = Service(store)
        await service.client.submit(beside, None, run_id="r")
        async with anyio.create_task_group() as tasks, service.worker(beside, grace=10):
            await store.is_held.wait()
            tasks.start_soon(go_on_soon)
        assert service.world.done == ["once"]
