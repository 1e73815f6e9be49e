"""Suspended runs cost a worker nothing: no memory, no time, however many there are."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Signal, workflow
from effectflow.checkpoint import RunStatus
from effectflow.checkpoint.entries import Started
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.mailbox import Mailbox
from effectflow.checkpoint.run import Run
from effectflow.stores import SqliteStore
from tests.apps import App, Broken
from tests.service.conftest import Service
from tests.service.lives import entries_of, suspended, working

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)

COUNT = 5_000
"""The benchmark `due_runs` has more."""


@workflow
def approve(_: None) -> Do[App, Broken, str]:
    return (yield from approval.wait())


async def suspend_many(service: Service, count: int) -> None:
    """Store many runs as a worker leaves them that has suspended them."""
    async with working(service, approve) as worker:
        await worker.client.submit(approve, None, run_id="model")
        info = await suspended(service, "model")
    seal, model = service.checkpoints().seal, await entries_of(service, "model")

    async def create(numbers: range) -> None:
        for number in numbers:
            run_id, bodies = str(number), list[bytes]()
            digest = first_digest(run_id)
            for entry in model:
                its = replace(entry, run_id=run_id) if isinstance(entry, Started) else entry
                body, digest = seal.close(its, digest)
                bodies.append(body)
            assert await service.store.create(run_id, bodies, summary=info.summary)

    async with anyio.create_task_group() as tasks:
        for first in range(32):
            tasks.start_soon(create, range(first, count, 32))


def parts_in_memory() -> int:
    """Return how many parts of driven runs are in memory."""
    gc.collect()
    return sum(isinstance(thing, Run | DurableFlow | Mailbox) for thing in gc.get_objects())


async def test_a_worker_holds_nothing_of_suspended_runs_and_wakes_one_among_many(
    tmp_path: Path,
) -> None:
    async with SqliteStore(tmp_path / "runs.db", durability="process") as store:
        service = Service(store)
        await suspend_many(service, COUNT)
        before = parts_in_memory()
        async with working(service, approve) as worker:
            await anyio.sleep(0.2)
            assert parts_in_memory() == before
            handle = worker.client.handle(approve, "2500")
            assert await handle.status() is RunStatus.SUSPENDED
            with anyio.fail_after(2):
                await handle.send(approval, "ann")
                assert await handle.result() == Success("ann")
            assert parts_in_memory() == before


async def test_what_was_driven_and_suspended_leaves_nothing_in_memory(service: Service) -> None:
    async with working(service, approve) as worker:
        before = parts_in_memory()
        for number in range(50):
            await worker.client.submit(approve, None, run_id=str(number))
        for number in range(50):
            await suspended(service, str(number))
        await anyio.sleep(0.05)
        assert parts_in_memory() == before
