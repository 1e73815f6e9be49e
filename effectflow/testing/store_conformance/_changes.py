"""Check the changes that watchers receive."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio

from effectflow.checkpoint.store import Changes
from effectflow.testing.store_conformance import _check
from effectflow.testing.store_conformance._check import (
    COMPLETED,
    GO,
    RUNNING,
    SUSPENDED,
    Service,
)


async def _has_changed(changes: Changes, *run_ids: str) -> bool:
    """Return whether a change of each of these runs arrives in time."""
    missing, until = set(run_ids), time.monotonic() + _check.PATIENCE
    while missing and time.monotonic() < until:
        changed = await changes.wait(until - time.monotonic())
        if changed is None:
            return True
        missing -= changed
    return not missing


async def _is_quiet(changes: Changes) -> bool:
    """Return whether changes stop arriving."""
    for _ in range(100):
        if await changes.wait(0.2) == frozenset():
            return True
    return False


async def watchers_see_every_kind_of_change(s: Service, other: Service) -> None:
    """Through either store, whichever made the change."""
    async with s.store.changes() as changes, other.store.changes() as others:

        async def check_seen(kind: str) -> None:
            for watcher in (changes, others):
                assert await _has_changed(watcher, "r"), f"{kind} is not seen"

        for writer in (s, other):
            await writer.create("r")
            await check_seen("a creation")
            await writer.store.send("r", GO, key="k")
            await check_seen("a message")
            await writer.append(await writer.claim(), summary=SUSPENDED, release=True)
            await check_seen("a new summary")
            child = await writer.begin("child", summary=replace(RUNNING, parent="r"))
            await writer.append(child, summary=replace(COMPLETED, parent="r"), release=True)
            await check_seen("a notice to a parent")
            for run_id in ("child", "r"):
                await writer.store.delete(run_id)
            await check_seen("a deletion")


async def changes_accumulate_until_a_watcher_asks_for_them(s: Service, other: Service) -> None:
    run_ids = [f"r{number}" for number in range(20)]
    async with other.store.changes() as changes:
        for run_id in run_ids:
            await s.create(run_id)
        assert await _has_changed(changes, *run_ids)
        with anyio.move_on_after(0.05):
            await changes.wait(_check.PATIENCE)
        await s.store.send("r7", GO, key="k")
        assert await _has_changed(changes, "r7")


async def reads_are_not_reported_as_changes(s: Service) -> None:
    await s.create()
    async with s.store.changes() as changes:
        assert await _is_quiet(changes)
        await s.store.mailbox("r")
        await s.store.find()
        await s.store.read("r")
        assert await changes.wait(0) == frozenset()
        began = time.monotonic()
        assert await changes.wait(0.2) == frozenset()
        assert time.monotonic() - began > 0.15


async def a_waiting_watcher_wakes_at_once(s: Service, other: Service) -> None:
    async with other.store.changes() as changes:
        assert await _is_quiet(changes)
        waits, began = list[float](), time.monotonic()

        async def watch() -> None:
            assert await _has_changed(changes, "r")
            waits.append(time.monotonic() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.1)
            began = time.monotonic()
            await s.create()
        assert waits[0] < 2
