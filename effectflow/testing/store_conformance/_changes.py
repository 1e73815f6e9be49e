"""Check the changes that watchers receive."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio

from effectflow.checkpoint.store import Changes, RunStatus, ServiceStore
from effectflow.testing.store_conformance import _check
from effectflow.testing.store_conformance._check import (
    SERVICE,
    appended,
    claimed,
    created,
    deadline,
    summary_of,
)
from effectflow.testing.store_conformance._messages import GO

SUSPENDED = summary_of(RunStatus.SUSPENDED)


async def has_changed(changes: Changes, *run_ids: str) -> bool:
    """Return whether a change of each of these runs arrives in time."""
    missing, until = set(run_ids), deadline()
    while missing and time.monotonic() < until:
        changed = await changes.wait(until - time.monotonic())
        if changed is None:
            return True
        missing -= changed
    return not missing


async def is_quiet(changes: Changes) -> bool:
    """Return whether changes stop arriving."""
    for _ in range(100):
        if await changes.wait(0.2) == frozenset():
            return True
    return False


@SERVICE.check_of_two
async def watchers_see_every_kind_of_change(store: ServiceStore, other: ServiceStore) -> None:
    """Through either store, whichever made the change."""
    async with store.changes() as changes, other.changes() as others:

        async def check_seen(kind: str) -> None:
            for watcher in (changes, others):
                assert await has_changed(watcher, "r"), f"{kind} is not seen"

        for writer in (store, other):
            await created(writer, "r")
            await check_seen("a creation")
            await writer.send("r", GO, key="k")
            await check_seen("a message")
            await appended(writer, await claimed(writer), summary=SUSPENDED, release=True)
            await check_seen("a new summary")
            await writer.delete("r")
            await check_seen("a deletion")


@SERVICE.check_of_two
async def a_notice_is_a_change_of_the_parent(store: ServiceStore, other: ServiceStore) -> None:
    await created(store, "parent", summary=SUSPENDED)
    summary = await created(store, "child", summary=summary_of(parent="parent"))
    async with other.changes() as changes:
        assert await is_quiet(changes)
        lease = await claimed(store, "child")
        ended = replace(summary, status=RunStatus.COMPLETED)
        await appended(store, lease, summary=ended, release=True)
        assert await has_changed(changes, "child", "parent")


@SERVICE.check_of_two
async def changes_accumulate_until_a_watcher_asks_for_them(
    store: ServiceStore, other: ServiceStore
) -> None:
    run_ids = [f"r{number}" for number in range(20)]
    async with other.changes() as changes:
        for run_id in run_ids:
            await created(store, run_id)
        assert await has_changed(changes, *run_ids)
        with anyio.move_on_after(0.05):
            await changes.wait(_check.PATIENCE)
        await store.send("r7", GO, key="k")
        assert await has_changed(changes, "r7")


@SERVICE.check
async def reads_are_not_reported_as_changes(store: ServiceStore) -> None:
    await created(store)
    async with store.changes() as changes:
        assert await is_quiet(changes)
        await store.mailbox("r")
        await store.find()
        await store.read("r")
        assert await changes.wait(0) == frozenset()
        began = time.monotonic()
        assert await changes.wait(0.2) == frozenset()
        assert time.monotonic() - began > 0.15


@SERVICE.check_of_two
async def a_waiting_watcher_wakes_at_once(store: ServiceStore, other: ServiceStore) -> None:
    async with other.changes() as changes:
        assert await is_quiet(changes)
        waits, began = list[float](), time.monotonic()

        async def watch() -> None:
            assert await has_changed(changes, "r")
            waits.append(time.monotonic() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.1)
            began = time.monotonic()
            await created(store)
        assert waits[0] < 2
