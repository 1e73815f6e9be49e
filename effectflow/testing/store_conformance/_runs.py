"""Find, name, keep and delete runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    Checkpoints,
    CheckpointStore,
    KeepsHistory,
    LeaseLost,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    step,
)
from effectflow.effects import Do, Effect, ask, fail, pure, traverse
from effectflow.testing.store_conformance._check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
    written,
)
from effectflow.workflows import workflow

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
async def find_selects_runs_and_sorts_the_newest_first(store: CheckpointStore) -> None:
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
    # This process holds the newest.
    assert await found(RunQuery(resumable=True)) == ["r2", "r0"]
    assert await found(RunQuery(updated_before=time.time() - 60)) == []
    assert len(await found(RunQuery(updated_before=time.time() + 60))) == 5


@check
async def a_run_is_resumable_until_it_is_completed_or_cancelled(store: CheckpointStore) -> None:
    for status in RunStatus:
        lease = await claimed(store, status.value)
        await store.append(lease, [b"x"], after=0, summary=summary_of(status), release=True)

    found = {info.run_id for info in await store.find(RunQuery(resumable=True))}
    assert found == {"pending", "running", "suspended", "interrupted", "failed"}
    cancelled = await store.find(RunQuery(statuses=frozenset({RunStatus.CANCELLED})))
    assert [info.run_id for info in cancelled] == ["cancelled"]


@check
async def pages_contain_every_run_once(store: CheckpointStore) -> None:
    run_ids = [f"r{number:02}" for number in range(23)]
    for run_id in run_ids:
        await written(store, run_id, b"x")

    paged: list[str] = []
    while page := await store.find(RunQuery(limit=5, offset=len(paged))):
        paged += [info.run_id for info in page]
    assert paged == run_ids


@check
async def each_run_is_found_once_while_others_are_added(store: CheckpointStore) -> None:
    """Even by a store that queries them in pieces."""
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
async def a_stale_owner_cannot_restore_a_deleted_run(
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
async def hostile_run_ids_are_plain_names(store: CheckpointStore) -> None:
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


@dataclass(frozen=True)
class _App:
    checkpoints: Checkpoints
    is_broken: bool = False


@step
def _deliver(item: str) -> Effect[_App, str, str]:
    def perform(app: _App) -> Effect[object, str, str]:
        return fail("broken") if app.is_broken else pure(item)

    return ask(_App).and_then(perform)


@workflow
def _delivery(items: list[str]) -> Do[_App, str, list[str]]:
    return (yield from traverse(items, _deliver))


@check
async def a_completed_run_is_deleted_unless_it_is_preserved(store: CheckpointStore) -> None:
    """A failed run stays and can be resumed. A deleted run can be started again."""
    checkpoints = Checkpoints(store, preserve=False)
    for _ in range(2):
        await _delivery.start(["a", "b"], run_id="r").run(_App(checkpoints, is_broken=True))
        info = await store.info("r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)

        assert await _delivery.resume("r").run_or_raise(_App(checkpoints)) == ["a", "b"]
        assert await store.info("r") is None
        assert await store.read("r") == []
        assert await store.find() == []
        with fails(RunNotFound):
            await store.delete("r")


@check
async def a_history_limit_removes_no_records(store: CheckpointStore) -> None:
    """At any value and any time. It concerns one run only."""
    if not isinstance(store, KeepsHistory):
        return
    expected: dict[str, list[bytes]] = {"r0": [], "r1": [], "other": []}
    for limits in ((0, 1), (10, 0), (1, 2)):
        for run_id, limit in zip(("r0", "r1"), limits, strict=True):
            store.keep_history(run_id, limit)
        for run_id, bodies in expected.items():
            lease = await claimed(store, run_id)
            for number in range(4):
                await store.append(lease, [b"%d" % number], after=len(bodies), summary=summary_of())
                bodies.append(b"%d" % number)
            await store.release(lease)

    for run_id, bodies in expected.items():
        assert await bodies_of(store, run_id) == bodies
    await store.delete("r0")
    assert {info.run_id for info in await store.find()} == {"r1", "other"}
