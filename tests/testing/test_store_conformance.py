"""The published suite rejects a store that breaks its rules, and ends even if the store never does."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import anyio
import pytest

from effectflow.checkpoint import (
    Changes,
    Claimed,
    DueRuns,
    Lease,
    Record,
    RunInfo,
    RunQuery,
)
from effectflow.effects.event_loop import call_soon_from_threads
from effectflow.stores import MemoryStore
from effectflow.testing import store_conformance
from effectflow.testing.forwarding import ForwardingStore

pytestmark = pytest.mark.anyio

CHECKS = {check.__name__: check for check in store_conformance.CHECKS}

TAKEOVER = "a_concurrent_renewal_never_undoes_a_takeover"
IN_A_THREAD = "a_lease_is_renewed_while_the_event_loop_is_blocked"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checks wait only briefly."""
    for module in ("_check", "_runs", "_journals", "_due_runs"):
        monkeypatch.setattr(f"effectflow.testing.store_conformance.{module}.PATIENCE", 0.1)


class RenewsNothing(ForwardingStore):
    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        return lease


class NeverRenews(ForwardingStore):
    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        threading.Event().wait()
        return lease


class NeedsTheEventLoop(ForwardingStore):
    """Its renewals wait for the event loop, which may be blocked."""

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        self.call_soon = call_soon_from_threads()
        return await super().claim(run_id, owner=owner, seconds=seconds)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        has_turned = threading.Event()
        self.call_soon(has_turned.set)
        has_turned.wait()
        return self.store.renew(lease, seconds=seconds)


class IgnoresOffsets(ForwardingStore):
    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        found = await super().find(RunQuery(limit=query.limit))
        return found or await super().find()


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


RENEWING = {TAKEOVER, IN_A_THREAD}
BROKEN: dict[type[ForwardingStore], set[str]] = {
    RenewsNothing: RENEWING,
    NeverRenews: RENEWING,
    NeedsTheEventLoop: RENEWING,
    IgnoresOffsets: {"pages_contain_every_run_once"},
    ReadsOnlyTheFirst: {"a_reader_sees_whole_appends"},
    ClaimsNothing: {"no_run_is_claimed_twice", "more_runs_are_started_when_a_limit_allows_it"},
    NeverReportsChanges: {"watchers_see_every_kind_of_change", "a_waiting_watcher_wakes_at_once"},
}


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
            group.start_soon(failed, kind, [name])
