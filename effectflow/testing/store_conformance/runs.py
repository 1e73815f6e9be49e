"""Finding runs, naming them, deleting them."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    RunBusy,
    RunQuery,
    RunStatus,
)
from effectflow.testing.store_conformance.check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
    written,
)

HOSTILE_RUN_IDS = (
    "",
    ".",
    "..",
    "../up",
    "/etc/passwd",
    "a/b",
    "C:\\con",
    "ünïcödé-🎈",
    "'; DROP TABLE runs; --",
    "nul\0",
    "new\nline",
    "%2e%2e",
    "*?[a]",
    "A",
    "a",
    "x" * 5000,
)


@check
async def runs_are_found_by_what_they_are_newest_first(store: CheckpointStore) -> None:
    for number in range(5):
        lease = await claimed(store, f"r{number}")
        status = RunStatus.COMPLETED if number % 2 else RunStatus.FAILED
        row = summary_of(status, workflow="even" if number % 2 == 0 else "odd", created_at=number)
        await store.append(lease, [b"x"], after=0, summary=row, release=number != 4)

    async def found(query: RunQuery) -> list[str]:
        return [info.run_id for info in await store.find(query)]

    assert await found(RunQuery()) == ["r4", "r3", "r2", "r1", "r0"]
    assert await found(RunQuery(limit=2)) == ["r4", "r3"]
    assert await found(RunQuery(limit=2, offset=3)) == ["r1", "r0"]
    assert await found(RunQuery(offset=9)) == []
    assert await found(RunQuery(limit=0)) == []
    assert await found(RunQuery(limit=0, offset=2)) == []
    assert await found(RunQuery(workflow="odd")) == ["r3", "r1"]
    assert await found(RunQuery(statuses=frozenset({RunStatus.FAILED}))) == ["r4", "r2", "r0"]
    # The newest is held by this very process.
    assert await found(RunQuery(resumable=True)) == ["r2", "r0"]
    assert await found(RunQuery(updated_before=time.time() - 60)) == []
    assert len(await found(RunQuery(updated_before=time.time() + 60))) == 5


@check
async def pages_have_every_run_once(store: CheckpointStore) -> None:
    run_ids = [f"r{number:02}" for number in range(23)]
    for run_id in run_ids:
        await written(store, run_id, b"x")

    paged: list[str] = []
    while page := await store.find(RunQuery(limit=5, offset=len(paged))):
        paged += [info.run_id for info in page]
    assert paged == run_ids


@check
async def each_run_is_found_once_while_others_are_added(store: CheckpointStore) -> None:
    """Also by a store that asks for them piece by piece."""
    there = {f"r{number:03}" for number in range(450)}
    async with anyio.create_task_group() as group:
        for run_id in there:
            group.start_soon(written, store, run_id, b"x")

    searches = 0

    async def add() -> None:
        number = 0
        while searches < 5:
            number += 1
            lease = await claimed(store, f"new{number}")
            summary = summary_of(created_at=number)
            await store.append(lease, [b"x"], after=0, summary=summary, release=True)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(add)
        while searches < 5:
            found = [info.run_id for info in await store.find(RunQuery(limit=10**6))]
            assert len(found) == len(set(found))
            assert there <= set(found)
            searches += 1


@check
async def a_deleted_run_is_gone_and_its_stale_owner_cannot_bring_it_back(
    store: CheckpointStore,
) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    with fails(RunBusy):
        await store.delete("r")
    await store.release(lease)
    await store.delete("r")

    assert await store.read("r") == []
    assert await store.info("r") is None
    assert await store.find() == []
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary_of())
    await written(store, "r", b"anew")
    assert await bodies_of(store) == [b"anew"]


@check
async def hostile_run_ids_are_names_like_any_other(store: CheckpointStore) -> None:
    for run_id in HOSTILE_RUN_IDS:
        await written(store, run_id, run_id.encode())

    for run_id in HOSTILE_RUN_IDS:
        assert await bodies_of(store, run_id) == [run_id.encode()]
        info = await store.info(run_id)
        assert info is not None
        assert info.run_id == run_id
    assert {info.run_id for info in await store.find()} == set(HOSTILE_RUN_IDS)
    for run_id in HOSTILE_RUN_IDS:
        await store.delete(run_id)
    assert await store.find() == []
