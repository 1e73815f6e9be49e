"""Suspended runs cost a worker nothing: no memory, no time, however many there are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Signal, workflow
from effectflow.checkpoint import RunQuery, RunStatus, ServiceStore
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.entries import Started
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.mailbox import Mailbox
from effectflow.checkpoint.run import Run
from effectflow.effects import never
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import CrashPoint, FaultyStore
from tests.apps import App, Broken, note
from tests.service.conftest import Service
from tests.service.lives import all_are, entries_of, suspended, working

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)


@workflow
def approve(_: None) -> Do[App, Broken, str]:
    return (yield from approval.wait())


@workflow
def live_twice(name: str) -> Do[App, Broken, int]:
    """Hang in the first life."""
    lives = yield from note(name)
    return lives if lives > 1 else (yield from never())


async def suspend_many(store: ServiceStore, count: int) -> None:
    """Store runs "0", "1" and so on as a worker leaves them that has suspended them."""
    async with store:
        service = Service(store)
        async with working(service, approve) as worker:
            await worker.client.submit(approve, None, run_id="0")
            info = await suspended(service, "0")
        seal, model = service.checkpoints().seal, await entries_of(service, "0")

        async def create(numbers: range) -> None:
            for number in numbers:
                run_id, bodies = str(number), list[bytes]()
                digest = first_digest(run_id)
                for entry in model:
                    its = replace(entry, run_id=run_id) if isinstance(entry, Started) else entry
                    body, digest = seal.close(its, digest)
                    bodies.append(body)
                assert await store.create(run_id, bodies, summary=info.summary)

        async with anyio.create_task_group() as tasks:
            for first in range(1, 33):
                tasks.start_soon(create, range(first, count, 32))


@pytest.fixture(scope="module", params=[2_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def count(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def filled(count: int) -> Iterator[Path]:
    """An SQLite file with many suspended runs, for each test to copy."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        anyio.run(suspend_many, SqliteStore(path, durability="process"), count)
        yield path


@pytest.fixture(params=["memory", "sqlite"])
def crowd(request: pytest.FixtureRequest, count: int) -> Iterator[Service]:
    """A service with many suspended runs, whose store is closed."""
    if request.param == "memory":
        store = MemoryStore()
        anyio.run(suspend_many, store, count)
        yield Service(store)
        return
    with TemporaryDirectory() as folder:
        copy = copyfile(request.getfixturevalue("filled"), Path(folder) / "runs.db")
        yield Service(SqliteStore(copy, durability="process"))


@pytest.fixture
def new_heap() -> None:
    """Hide what is in memory already from the garbage collector, which would take long to visit it."""
    gc.freeze()


def new_objects() -> list[object]:
    """Return what was made since and can hold other objects."""
    gc.collect()
    return gc.get_objects()


async def until_forgotten() -> None:
    """Wait until nothing is in memory of driven runs."""
    with anyio.fail_after(10):
        while any(isinstance(thing, Run | DurableFiber | Mailbox) for thing in new_objects()):
            await anyio.sleep(0.01)


async def test_a_worker_holds_nothing_of_many_suspended_runs_and_wakes_one_of_them(
    crowd: Service, count: int, new_heap: None
) -> None:
    store = FaultyStore(crowd.store)
    async with working(replace(crowd, store=store), approve) as worker:
        await anyio.sleep(0.2)
        assert len(store.calls) < 10
        assert len(new_objects()) < count
        handle = worker.client.handle(approve, str(count // 2))
        assert await handle.status() is RunStatus.SUSPENDED
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("ann")
        await until_forgotten()
        assert len(new_objects()) < count


async def test_all_runs_of_a_dead_process_continue_beside_many_suspended_runs(
    crowd: Service, count: int
) -> None:
    """There are more of them than a query returns unless it asks for all."""
    died = 120
    store = FaultyStore(crowd.store, [CrashPoint(died + 1, False, "create")])
    service = replace(crowd, store=store)
    with store.life():
        async with working(service, live_twice, limit=died, grace=0) as worker:
            for number in range(died):
                await worker.client.submit(live_twice, f"{number}", run_id=f"dead {number}")
            with anyio.fail_after(20):
                while len(service.world.done) < died:
                    await anyio.sleep(0.01)
            await worker.client.submit(live_twice, "last words")
    assert not store.unmet

    async with working(service, live_twice) as worker:
        for number in range(died):
            handle = worker.client.handle(live_twice, f"dead {number}")
            assert await handle.result(timeout=20) == Success(2)
        ended = RunQuery(statuses=frozenset({RunStatus.COMPLETED}), limit=None)
        assert len(await worker.client.find(ended)) == died
        waiting = RunQuery(statuses=frozenset({RunStatus.SUSPENDED}), limit=None)
        assert len(await worker.client.find(waiting)) == count


async def test_driven_and_suspended_runs_leave_nothing_in_memory(
    service: Service, new_heap: None
) -> None:
    async with working(service, approve) as worker:
        for number in range(50):
            await worker.client.submit(approve, None, run_id=str(number))
        await all_are(service, RunStatus.SUSPENDED)
        await until_forgotten()
