"""The published suite rejects a store that breaks its rules, and ends even if the store never does."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from effectflow.checkpoint import (
    Changes,
    CheckpointStore,
    Claimed,
    CorruptCheckpoint,
    DueRuns,
    Lease,
    Owner,
    Record,
    RunInfo,
    RunQuery,
    RunSummary,
    Taken,
)
from effectflow.effects.event_loop import call_soon_from_threads
from effectflow.stores import MemoryStore
from effectflow.stores.base import UNREADABLE
from effectflow.testing import store_conformance
from effectflow.testing.forwarding import ForwardingStore

pytestmark = pytest.mark.anyio

CHECKS = {str(check): check for check in store_conformance.CHECKS}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checks wait only briefly."""
    monkeypatch.setattr("effectflow.testing.store_conformance._check.PATIENCE", 0.1)


class RenewsNothing(ForwardingStore):
    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return list(leases)


class NeverRenews(ForwardingStore):
    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        threading.Event().wait()
        return []


class NeedsTheEventLoop(ForwardingStore):
    """Its renewals wait for the event loop, which may be blocked."""

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        self.call_soon = call_soon_from_threads()
        return await super().create(run_id, bodies, **options)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        has_turned = threading.Event()
        self.call_soon(has_turned.set)
        has_turned.wait()
        return self.store.renew(leases, seconds=seconds)


class IgnoresPlaces(ForwardingStore):
    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        return await super().find(replace(query, after=None))


class ReadsOnlyTheFirst(ForwardingStore):
    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return (await super().read(run_id, after=after))[:10]


class ClaimsNothing(ForwardingStore):
    async def claim_due(self, due: DueRuns) -> Claimed:
        return Claimed((), None)


class _Silent(Changes):
    async def wait(self, seconds: float) -> frozenset[str]:
        await anyio.sleep_forever()
        raise AssertionError


class NeverReportsChanges(ForwardingStore):
    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        yield _Silent()


BROKEN: dict[type[ForwardingStore], set[str]] = {
    RenewsNothing: {"one_renewal_extends_many_leases"},
    NeverRenews: {"a_concurrent_renewal_never_undoes_a_takeover"},
    NeedsTheEventLoop: {"a_held_run_is_busy_until_it_is_released"},
    IgnoresPlaces: {"pages_contain_every_run_once"},
    ReadsOnlyTheFirst: {"a_reader_sees_whole_appends"},
    ClaimsNothing: {
        "no_run_is_claimed_twice",
        "a_limit_bounds_how_fast_pending_runs_are_started",
    },
    NeverReportsChanges: {"watchers_see_every_kind_of_change", "a_waiting_watcher_wakes_at_once"},
}
"""Some of the checks that each of them fails."""


SLOW = (NeverReportsChanges, NeverRenews, NeedsTheEventLoop)
"""Checks wait for them in vain."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.exhaustive) if kind in SLOW else kind for kind in BROKEN],
)
async def test_every_check_of_a_broken_store_ends_and_some_fail(
    kind: type[ForwardingStore],
) -> None:
    failed: set[str] = set()

    async def try_it(name: str) -> None:
        try:
            await CHECKS[name](lambda: kind(MemoryStore()))
        except Exception:
            failed.add(name)

    # These by themselves, so that none of them fails because another one blocks the event loop.
    for name in sorted(BROKEN[kind]):
        await try_it(name)
    assert failed == BROKEN[kind]
    # Most of their time is waiting.
    async with anyio.create_task_group() as group:
        for name in CHECKS.keys() - BROKEN[kind]:
            group.start_soon(try_it, name)


async def test_a_check_names_what_a_store_lacks() -> None:
    class Begun(CheckpointStore):
        """Has two methods of its own. It inherits the others, which do nothing."""

        @property
        def durability(self) -> str:
            return "memory"

        async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
            return []

    for check in store_conformance.JOURNAL_CHECKS:
        with pytest.raises(AssertionError, match="Begun is not a CheckpointStore: it lacks create"):
            await check(Begun)
    for check in store_conformance.DAMAGE_CHECKS:
        with pytest.raises(AssertionError, match="pass a function that damages a run"):
            await check(MemoryStore)


class Damaged(ForwardingStore):
    """Some of its runs cannot be read.

    Parameters:
        is_careful: whether it handles them as the contract says.
    """

    def __init__(self, store: CheckpointStore, *, is_careful: bool) -> None:
        super().__init__(store)
        self.is_careful = is_careful
        self.damaged: set[str] = set()

    def check(self, run_id: str) -> None:
        if run_id in self.damaged:
            raise CorruptCheckpoint(run_id, "it is damaged")

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        infos = await super().find(replace(query, limit=None))
        if query.run_id is not None or not self.is_careful:
            for info in infos:
                self.check(info.run_id)
        for run_id in self.damaged:
            logging.getLogger(__name__).warning("skipping run %r", run_id)
        return [info for info in infos if info.run_id not in self.damaged][: query.limit]

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        taken = await super().claim(run_id, owner=owner, seconds=seconds)
        if run_id not in self.damaged:
            return taken
        return replace(taken, info=replace(taken.info, summary=UNREADABLE))

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await super().truncate(lease, after=after, summary=summary)
        self.damaged.discard(lease.run_id)

    async def claim_due(self, due: DueRuns) -> Claimed:
        # The damaged ones take no place of others.
        owners = [*due.owners, *(str(Owner.new()) for _ in self.damaged)]
        claimed = await super().claim_due(replace(due, owners=owners))
        whole = [one for one in claimed.runs if one.info.run_id not in self.damaged]
        runs = tuple(whole[: len(due.owners)])
        for one in claimed.runs:
            if one not in runs:
                await self.release(one.lease)
        return Claimed(runs, claimed.next_due_at)

    async def damaged_runs(self) -> list[str]:
        return sorted(self.damaged)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await super().delete(run_id, lease=lease)
        self.damaged.discard(run_id)


async def damage(store: CheckpointStore, run_id: str) -> None:
    assert isinstance(store, Damaged)
    store.damaged.add(run_id)


@pytest.mark.parametrize("check", store_conformance.DAMAGE_CHECKS, ids=str)
async def test_a_store_may_have_damaged_runs(check: store_conformance.Check) -> None:
    await check(lambda: Damaged(MemoryStore(), is_careful=True), damage=damage)


async def test_a_damaged_run_must_not_hurt_others() -> None:
    failed: set[str] = set()
    for check in store_conformance.DAMAGE_CHECKS:
        try:
            await check(lambda: Damaged(MemoryStore(), is_careful=False), damage=damage)
        except CorruptCheckpoint:
            failed.add(str(check))
    assert "a_damaged_run_leaves_full_pages_of_the_others" in failed
