"""Submitted runs: durable, found again by their ids, and executed only by workers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Client, Do, spawn, workflow
from effectflow.checkpoint import (
    NotSerializable,
    RunConflict,
    RunNotFound,
    RunQuery,
    RunStatus,
    run_context,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, Crash, World, note
from tests.service.conftest import Service, both_stores
from tests.service.lives import working

pytestmark = pytest.mark.anyio


@workflow
def act(action: str) -> Do[App, Broken, int]:
    return (yield from note(action))


@workflow(name="other")
def act_otherwise(action: str) -> Do[App, Broken, int]:
    return (yield from note(action))


@workflow
def tell_context(_: None) -> Do[App, Broken, str]:
    context = yield from run_context()
    return str(context["tenant"])


@both_stores
async def test_a_submitted_run_is_pending_until_a_worker_takes_it(service: Service) -> None:
    handle = await service.client.submit(act, "a", run_id="r")

    assert await handle.status() is RunStatus.PENDING
    assert service.world.done == []
    with pytest.raises(TimeoutError, match="run 'r' has not ended within"):
        await handle.result(timeout=0.01)
    async with service.worker(act):
        assert await handle.result() == Success(1)
    assert await handle.status() is RunStatus.COMPLETED
    assert await service.client.handle(act, "r").result() == Success(1)
    # It has ended, so there is nothing to wait for.
    assert await service.client.handle(act, "r").result(timeout=0) == Success(1)


@pytest.mark.parametrize("status", ["pending", "completed", "failed", "cancelled"])
async def test_the_same_submission_gives_the_run_in_any_state_and_executes_nothing(
    service: Service, status: str
) -> None:
    if status == "failed":
        service.world.failing.add("a")
    first = await service.client.submit(act, "a", run_id="r")
    if status == "cancelled":
        await first.cancel()
    if status != "pending":
        async with service.worker(act):
            await first.result()
    done = list(service.world.done)

    again = await service.client.submit(act, "a", run_id="r")

    assert again.run_id == "r"
    assert str(await again.status()) == status
    if status != "pending":
        async with service.worker(act):
            assert str(await again.result()) == str(await first.result())
            await anyio.sleep(0.05)
        assert service.world.done == done


async def test_another_input_or_workflow_under_the_same_id_is_a_conflict(service: Service) -> None:
    client = service.client
    await client.submit(act, "a", run_id="r")

    for ended in (False, True):
        with pytest.raises(RunConflict, match="it was started with another input"):
            await client.submit(act, "b", run_id="r")
        with pytest.raises(RunConflict, match="it is a run of workflow 'act', not of 'other'"):
            await client.submit(act_otherwise, "a", run_id="r")
        with pytest.raises(RunConflict):
            await client.handle(act_otherwise, "r").status()
        if not ended:
            async with service.worker(act):
                await client.handle(act, "r").result()


@pytest.mark.parametrize("input", [5, object(), "\ud800"])
async def test_an_input_that_is_not_as_declared_is_rejected_and_nothing_is_submitted(
    service: Service, input: Any
) -> None:
    with pytest.raises(NotSerializable, match="input: "):
        await service.client.submit(act, input)
    with pytest.raises(NotSerializable, match="context: "):
        await service.client.submit(act, "a", context={"a": object()})
    assert await service.client.find() == []


@both_stores
async def test_many_concurrent_submissions_create_one_run(service: Service) -> None:
    async with service.worker(act) as worker, anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(lambda: worker.client.submit(act, "once", run_id="r"))
    async with service.worker(act) as worker:
        assert await worker.client.handle(act, "r").result() == Success(1)
    assert service.world.done == ["once"]


async def test_a_run_with_a_delay_waits_for_its_time(service: Service) -> None:
    clock = TestClock()
    async with service.worker(act, clock=clock) as worker:
        handle = await worker.client.submit(act, "late", delay=60)
        await clock.advance(59)
        await anyio.sleep(0.05)
        assert await handle.status() is RunStatus.PENDING
        await clock.advance(2)
        assert await handle.result(timeout=10) == Success(1)


async def test_a_run_is_due_at_once_by_a_clock_that_starts_at_the_epoch(tmp_path: Path) -> None:
    """As on a small computer without a battery, before it has asked for the time."""
    service = Service(SqliteStore(tmp_path / "runs.db"))
    async with service.worker(act, clock=TestClock(datetime.fromtimestamp(0, UTC))) as worker:
        handle = await worker.client.submit(act, "a")
        assert await handle.result(timeout=10) == Success(1)


@both_stores
async def test_runs_with_a_higher_priority_are_taken_first(service: Service) -> None:
    client = service.client
    for priority in (1, 3, 2):
        await client.submit(act, f"priority {priority}", priority=priority, run_id=str(priority))

    async with service.worker(act, limit=1):
        for priority in (1, 2, 3):
            await client.handle(act, str(priority)).result()
    assert service.world.done == ["priority 3", "priority 2", "priority 1"]


async def test_a_submitted_run_has_its_context(service: Service) -> None:
    async with service.worker(tell_context) as worker:
        handle = await worker.client.submit(tell_context, None, context={"tenant": "acme"})
        assert await handle.result() == Success("acme")


async def test_a_failure_is_returned_as_its_class_and_a_defect_is_raised(service: Service) -> None:
    service.world.failing.add("fail")
    service.world.crashing.add("crash")
    async with service.worker(act) as worker:
        failed = await (await worker.client.submit(act, "fail")).result()
        assert isinstance(failed, Failure)
        assert repr(failed.failure()) == repr(Broken("fail#1"))
        with pytest.raises(Exception, match="crash#1") as raised:
            await (await worker.client.submit(act, "crash")).result()
        # A class that the workflow does not declare is not rebuilt.
        assert not isinstance(raised.value, Crash)


async def test_an_unknown_run_is_reported(service: Service) -> None:
    handle = service.client.handle(act, "unknown")

    result = await handle.result()
    assert isinstance(result.failure(), RunNotFound)
    for ask in (handle.status, handle.cancel, lambda: handle.published("progress")):
        with pytest.raises(RunNotFound):
            await ask()


async def test_runs_are_found_by_workflow_status_and_prefix(service: Service) -> None:
    client = service.client
    for run_id in ("shop/1", "shop/2", "bank/1"):
        await client.submit(act, "a", run_id=run_id)
    await client.submit(act_otherwise, "a", run_id="shop/3")

    async def found(**query: Any) -> set[str]:
        return {info.run_id for info in await client.find(RunQuery(**query))}

    assert await found(prefix="shop/") == {"shop/1", "shop/2", "shop/3"}
    assert await found(workflow="act", prefix="shop/") == {"shop/1", "shop/2"}
    assert await found(statuses=frozenset({RunStatus.PENDING})) == await found()
    assert await found(statuses=frozenset({RunStatus.COMPLETED})) == set()


async def test_a_client_opens_its_store_by_itself(tmp_path: Any) -> None:
    client = Client(Checkpoints(SqliteStore(tmp_path / "runs.db")))

    handle = await client.submit(act, "a")
    assert await handle.status() is RunStatus.PENDING
    async with client:
        await handle.cancel()
    assert len(await client.find()) == 1


async def test_a_workflow_without_an_input_is_submitted_and_spawned_without_one() -> None:
    @workflow
    async def nightly() -> int:
        return 5

    @workflow
    async def parent() -> int:
        return await (await spawn(nightly)).result()

    async with working(Service(MemoryStore(), World()), nightly, parent) as worker:
        handle = await worker.client.submit(parent)
        assert await handle.result(timeout=10) == Success(5)
