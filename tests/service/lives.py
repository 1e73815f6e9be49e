"""Services that live, die at any write, and live again; and what all tests of services look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import anyio

from effectflow import Effect, Worker, Workflow, step
from effectflow.checkpoint import (
    Entry,
    RunInfo,
    RunQuery,
    RunStatus,
    find_run,
    read_checkpoint,
    read_entries,
)
from effectflow.checkpoint.entries import Signalled
from effectflow.service import Handle
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, Slow
from effectflow.testing.crash import crash_points
from effectflow.testing.faulty_store import Operation
from tests.apps import App, Broken, note
from tests.service.conftest import Service
from tests.sweeps import visited


@step
def act(action: str) -> Effect[App, Broken, str]:
    """Note an action in the world. A repeated one yields the same."""
    return note(action).map(lambda _: action)


@asynccontextmanager
async def working(
    service: Service, *workflows: Workflow[Any, Any, Any, Any], **options: Any
) -> AsyncIterator[Worker[App]]:
    """Open a worker that suspends runs as soon as they wait."""
    async with service.worker(*workflows, **({"suspend_after": 0.0} | options)) as worker:
        yield worker


async def info_of(service: Service, run_id: str) -> RunInfo:
    info = await find_run(service.store, run_id)
    assert info is not None, f"run {run_id!r} is unknown"
    return info


async def until(
    service: Service,
    run_id: str,
    status: RunStatus,
    *,
    waits_for: str | None = None,
    longer_than: int = 0,
    within: float = 10.0,
) -> RunInfo:
    """Wait until a run has a status, waits for something, and is not held."""
    with anyio.fail_after(within):
        while True:
            info = await find_run(service.store, run_id)
            if (
                info is not None
                and info.summary.status is status
                and waits_for in (None, info.summary.details.waits_for)
                and info.length > longer_than
                and info.lease is None
            ):
                return info
            await anyio.sleep(0.003)


async def suspended(
    service: Service, run_id: str, *, waits_for: str | None = None, after: RunInfo | None = None
) -> RunInfo:
    """Wait until a run is suspended, for the first time after `after`."""
    longer_than = 0 if after is None else after.length
    return await until(
        service, run_id, RunStatus.SUSPENDED, waits_for=waits_for, longer_than=longer_than
    )


async def left_suspended(
    service: Service,
    workflow: Workflow[App, Any, None, Any],
    *others: Workflow[Any, Any, Any, Any],
) -> Handle[Any, Any]:
    """Let a worker begin the run `r` of a workflow, and end the worker once the run is suspended."""
    async with working(service, workflow, *others) as worker:
        handle = await worker.client.submit(workflow, None, run_id="r")
        await suspended(service, "r")
    return handle


async def all_are(service: Service, *statuses: RunStatus) -> None:
    """Wait until each run has one of these statuses, and is not held."""
    with anyio.fail_after(10):
        while not all(
            info.summary.status in statuses and info.lease is None
            for info in await service.store.find()
        ):
            await anyio.sleep(0.005)


async def entries_of(service: Service, run_id: str) -> list[Entry]:
    return await read_entries(service.store, run_id)


async def received(service: Service, run_id: str) -> list[str]:
    """Return the keys of the messages that a run has received, in order."""
    entries = await entries_of(service, run_id)
    return [entry.key for entry in entries if isinstance(entry, Signalled)]


async def ending_of(service: Service) -> dict[str, dict[str, object]]:
    """Return how all runs have ended, and what they left in the store."""
    found: dict[str, dict[str, object]] = {}
    for info in await service.store.find(RunQuery(limit=None)):
        checkpoint = await read_checkpoint(service.store, info.run_id)
        found[info.run_id] = {
            "status": str(info.summary.status),
            "steps": {done.step: done.output for done in checkpoint.completed_steps},
            "received": await received(service, info.run_id),
            "mailbox": len(await service.store.mailbox(info.run_id)),
            "lease": info.lease,
        }
    return found


IN_TURNS = [
    Slow(operation, 0)
    for operation in get_args(Operation)
    if operation != "renew"  # it blocks
]
"""Let every answer of a store take a turn of the event loop, as those of real stores do."""


async def killed_everywhere(
    live: Callable[[Service], Awaitable[object]], *, more_than: int, every: int = 1
) -> None:
    """Kill a service at its writes, just before or just after one of them, and compare.

    `live` is one life of the process: it opens workers, submits, sends, and returns what came of it. The
    next life does the same again.

    Parameters:
        more_than: a bound of the deaths; each death of a sample stands for `every` of all.
        every: visit each point, or only every n-th.
    """
    whole = Service(FaultyStore(MemoryStore(), IN_TURNS))
    expected = await live(whole), await ending_of(whole)
    assert isinstance(whole.store, FaultyStore)
    points = visited(crash_points(whole.store), every)
    deaths = 0
    for point in points:
        store = FaultyStore(MemoryStore(), [point, *IN_TURNS])
        service = Service(store)
        with store.life():
            await live(service)
        if point in store.unmet:
            continue  # what was written one by one was written together this time
        deaths += 1
        found = await live(replace(service)), await ending_of(service)
        assert found == expected, f"killed {point}:\n{found}\n{expected}"
    assert deaths * every > more_than


async def result_of(handle: Handle[Any, Any]) -> object:
    """Return how a run ended, for comparison."""
    return repr(await handle.result(timeout=10))
