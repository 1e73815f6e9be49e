"""The published suite rejects a store that breaks its rules, and ends even if the store never does."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence
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
    Record,
    RunInfo,
    RunQuery,
    Taken,
)
from effectflow.effects.event_loop import call_soon_from_threads
from effectflow.stores import MemoryStore
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


class _Silent:
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


async def failed(kind: type[ForwardingStore], names: Iterable[str]) -> set[str]:
    """Return which of these checks a store of this kind fails, one after another."""
    found: set[str] = set()
    for name in sorted(names):
        try:
            await CHECKS[name](lambda: kind(MemoryStore()))
        except Exception:
            found.add(name)
    return found


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_store_fails_the_checks_of_what_it_breaks(
    kind: type[ForwardingStore],
) -> None:
    assert await failed(kind, BROKEN[kind]) == BROKEN[kind]


@pytest.mark.parametrize(
    "kind",
    [
        NeverReportsChanges,
        NeverRenews,
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in BROKEN
            if kind not in (NeverReportsChanges, NeverRenews)
        ),
    ],
)
async def test_every_other_check_of_a_broken_store_ends(kind: type[ForwardingStore]) -> None:
    # Most of their time is waiting.
    async with anyio.create_task_group() as group:
        for name in CHECKS.keys() - BROKEN[kind]:
from collections.abc import AsyncGenerator, Iterable, Sequence
