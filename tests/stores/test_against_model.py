"""Every store against a model of what it should contain, over generated histories."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from effectflow.checkpoint import (
    CheckpointStore,
    KeepsHistory,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunStatus,
    RunSummary,
)

RUNS = st.sampled_from(["a", "a", "b/../b"])
LEASES = st.sampled_from([0, 0, 0, 1, 2, 3])
"""How many leases, of any run, are newer than the one to use."""
BODIES = st.lists(st.binary(max_size=20), max_size=3)
STORES = st.integers(0, 1)
"""Two stores are open over the same data, as in two processes."""


class StoreMachine(RuleBasedStateMachine):
    """Claims, appends, truncations, renewals, releases and deletions at either store, with any lease."""

    make: Callable[[], CheckpointStore]

    @initialize()
    def open(self) -> None:
        self.portal_context = start_blocking_portal("asyncio")
        self.portal = self.portal_context.__enter__()
        self.entered: dict[int, AbstractContextManager[CheckpointStore]] = {}
        self.stores: dict[int, CheckpointStore] = {}
        self.enter(0)
        if self.stores[0].durability == "memory":
            self.stores[1] = self.stores[0]
        else:
            self.enter(1)
        self.journals: dict[str, list[bytes]] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.holders: dict[str, Lease] = {}
        self.leases: list[Lease] = []
        self.used = 0
        self.claim("a", 0)
        self.append(0, 0, [b"0"], 0, with_summary=True, release=False)

    def enter(self, at: int) -> None:
        self.entered[at] = self.portal.wrap_async_context_manager(self.make())
        self.stores[at] = self.entered[at].__enter__()

    def teardown(self) -> None:
        if hasattr(self, "entered"):
            for entered in self.entered.values():
                entered.__exit__(None, None, None)
            self.portal_context.__exit__(None, None, None)

    def store(self, at: int) -> CheckpointStore:
        self.used = at
        return self.stores[at]

    def call(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def perform() -> Any:
            return await f(*args, **options)

        return self.portal.call(perform)

    def holds(self, lease: Lease) -> bool:
        """Return whether this is the current lease of its run."""
        held = self.holders.get(lease.run_id)
        return held is not None and held.fence == lease.fence

    @rule(run=RUNS, at=STORES)
    def claim(self, run: str, at: int) -> None:
        try:
            lease = self.call(self.store(at).claim, run, owner=str(Owner.new()), seconds=600)
        except RunBusy:
            assert run in self.holders
            return
        assert run not in self.holders
        assert all(lease.fence > older.fence for older in self.leases if older.run_id == run)
        self.leases.append(lease)
        self.holders[run] = lease

    @rule(
        at=STORES,
        age=LEASES,
        bodies=BODIES,
        off=st.sampled_from([0, 0, 0, 0, -1, 1]),
        with_summary=st.booleans(),
        release=st.sampled_from([False, False, True]),
    )
    def append(
        self, at: int, age: int, bodies: list[bytes], off: int, *, with_summary: bool, release: bool
    ) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        journal = self.journals.get(lease.run_id, [])
        status = RunStatus.RUNNING if len(journal) % 2 else RunStatus.FAILED
        summary = RunSummary("w", "standard", "1", status, 1.0)
        if not journal:
            # The first append of a run brings a record, and a summary.
            bodies = [*bodies, b"first"]
            with_summary = True
        try:
            self.call(
                self.store(at).append,
                lease,
                bodies,
                after=len(journal) + off,
                summary=summary if with_summary else None,
                release=release,
            )
        except LeaseLost:
            assert not self.holds(lease) or off
            return
        assert self.holds(lease)
        assert off == 0
        self.journals[lease.run_id] = journal + bodies
        if with_summary:
            self.statuses[lease.run_id] = status
        if release:
            del self.holders[lease.run_id]

    @rule(at=STORES, age=LEASES, fewer=st.sampled_from([0, 1, 2, -1]))
    def truncate(self, at: int, age: int, fewer: int) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        journal = self.journals.get(lease.run_id, [])
        after = max(len(journal) - fewer, 1)
        summary = RunSummary("w", "standard", "1", RunStatus.INTERRUPTED, 1.0)
        try:
            self.call(self.store(at).truncate, lease, after=after, summary=summary)
        except LeaseLost:
            assert not self.holds(lease) or after > len(journal)
            return
        assert self.holds(lease)
        del journal[after:]
        self.statuses[lease.run_id] = RunStatus.INTERRUPTED

    @rule(at=STORES, age=LEASES)
    def renew(self, at: int, age: int) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        try:
            renewed = self.store(at).renew(lease, seconds=1200)
        except LeaseLost:
            assert not self.holds(lease)
            return
        assert self.holds(lease)
        assert (renewed.owner, renewed.fence) == (lease.owner, lease.fence)
        assert renewed.expires_at > lease.expires_at

    @rule(at=STORES, age=LEASES)
    def release(self, at: int, age: int) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        self.call(self.store(at).release, lease)
        if self.holds(lease):
            del self.holders[lease.run_id]

    @rule(run=RUNS, at=STORES)
    def delete(self, run: str, at: int) -> None:
        try:
            self.call(self.store(at).delete, run)
        except RunBusy:
            assert run in self.holders
        except RunNotFound:
            assert not self.journals.get(run)
        else:
            assert run not in self.holders
            del self.journals[run]

    @rule(run=RUNS, at=STORES, copies=st.sampled_from([0, 1, 10]))
    def keep_history(self, run: str, at: int, copies: int) -> None:
        store = self.store(at)
        if isinstance(store, KeepsHistory):
            store.keep_history(run, copies)

    @rule(at=STORES)
    def reopen(self, at: int) -> None:
        if self.store(at).durability == "memory":
            return
        self.entered[at].__exit__(None, None, None)
        self.enter(at)

    @invariant()
    def both_stores_agree_with_the_model(self) -> None:
        """Including the store that did not make the last change."""
        if not hasattr(self, "used"):
            return
        expected = {run: journal for run, journal in self.journals.items() if journal}
        store = self.stores[1 - self.used]
        found = {info.run_id: info for info in self.call(store.find)}
        assert found.keys() == expected.keys()
        for run, journal in expected.items():
            for store in self.stores.values():
                assert [record.body for record in self.call(store.read, run)] == journal
            assert found[run].length == len(journal)
            assert found[run].summary.status is self.statuses[run]
            held = self.holders.get(run)
            lease = found[run].lease
            assert (lease and lease.fence) == (held and held.fence)


@pytest.mark.parametrize("examples", [4, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_a_store_agrees_with_the_model(
    make_store_named: Callable[[str], Callable[[], CheckpointStore]], examples: int
) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__()
            # Each history starts with empty stores.
            self.make = make_store_named(uuid4().hex)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
