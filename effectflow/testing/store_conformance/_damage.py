"""Check that a damaged run hurts no other one."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest import TestCase

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.run_info import RunQuery
from effectflow.checkpoint.store import DueRuns, Queue, ServiceStore, find_run
from effectflow.testing.store_conformance._check import (
    FAILED,
    PENDING,
    Damage,
    Journal,
    fails,
    new_owner,
)

DUE = replace(PENDING, due_at=1.0)


async def a_damaged_run_is_skipped_with_a_warning(s: Journal, damage: Damage) -> None:
    for run_id in ("first", "damaged", "last"):
        await s.create(run_id)
    await damage(s.store, "damaged")

    for query in (RunQuery(), RunQuery(limit=None), RunQuery(resumable=True)):
        with TestCase().assertLogs(level="WARNING") as logged:
            assert await s.find(query) == ["first", "last"]
        assert "damaged" in logged.output[0], "the warning does not name the run"
    assert await s.store.damaged_runs() == ["damaged"]
    with fails(CorruptCheckpoint) as caught:
        await find_run(s.store, "damaged")
    assert caught.exception.run_id == "damaged"


async def a_damaged_run_leaves_full_pages_of_the_others(s: Journal, damage: Damage) -> None:
    for number in range(6):
        await s.create(f"r{number}", summary=replace(PENDING, created_at=9.0 - number))
    await damage(s.store, "r1")

    page = await s.store.find(RunQuery(limit=3))
    assert [info.run_id for info in page] == ["r0", "r2", "r3"]
    assert await s.find(RunQuery(limit=3, after=page[-1].place)) == ["r4", "r5"]


async def the_others_are_written_beside_a_damaged_run(s: Journal, damage: Damage) -> None:
    lease = await s.begin("held")
    await s.begin("damaged", seconds=0)
    await damage(s.store, "damaged")

    assert len(s.renew(lease)) == 1
    await s.append(lease, b"2", summary=FAILED, release=True)
    await s.claim("held")
    await s.create("new")
    assert set(await s.find()) == {"held", "new"}


async def a_damaged_run_is_not_created_again_and_can_be_deleted(s: Journal, damage: Damage) -> None:
    await s.create("damaged", summary=DUE)
    await damage(s.store, "damaged")

    await s.store.salvage("damaged")
    assert await s.store.create("damaged", [b"x"], summary=DUE) is None
    await s.store.delete("damaged")
    assert await s.store.damaged_runs() == []
    await s.create("damaged")
    assert await s.bodies("damaged") == [b"1"]


async def a_damaged_run_can_be_claimed_for_a_repair(s: Journal, damage: Damage) -> None:
    await s.create("damaged", summary=DUE)
    await damage(s.store, "damaged")
    if not (await s.store.salvage("damaged")).records:
        # The damage has hit them, too, and nothing can be repaired.
        return

    taken = await s.store.claim("damaged", owner=new_owner(), seconds=60)
    assert (taken.info.summary.workflow, taken.info.length) == ("", 1)
    await s.store.truncate(taken.lease, after=1, summary=FAILED)
    info = await find_run(s.store, "damaged")
    assert info is not None
    assert info.summary == FAILED


async def a_worker_claims_the_others_beside_a_damaged_run(s: Journal, damage: Damage) -> None:
    """Only of a store that workers can use."""
    store = s.store
    if not isinstance(store, ServiceStore):
        return
    for number, run_id in enumerate(("damaged", "child", "also damaged", "due")):
        await s.create(run_id, summary=replace(DUE, due_at=1.0 + number))
    await damage(s.store, "damaged")
    await damage(s.store, "also damaged")

    # A claim of a single run finds one behind those that are damaged.
    for queues in ({}, {"w": Queue("w", limit=5, per_second=1e6)}):
        for count, found in ((5, {"child", "due"}), (1, {"child"})):
            owners = [new_owner() for _ in range(count)]
            claimed = await store.claim_due(
                DueRuns(frozenset({"w"}), owners, 60, time.time(), queues)
            )
            assert {one.info.run_id for one in claimed.runs} == found
            for one in claimed.runs:
                await s.store.release(one.lease)
    # The damaged ones are not held, so that a repair can claim them.
    await store.delete("damaged")
    await store.delete("also damaged")
