"""Every store against a model that says what it should hold, over generated histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

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
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunStatus,
    RunSummary,
)

RUNS = st.sampled_from(["a", "b/../b", "c"])
BODIES = st.lists(st.binary(max_size=20), max_size=3)


class StoreMachine(RuleBasedStateMachine):
    """Claims, appends, releases and deletes, by whoever once had a lease."""

    make: Callable[[], CheckpointStore]

    @initialize()
    def open(self) -> None:
        self.portal_context = start_blocking_portal("asyncio")
        self.portal = self.portal_context.__enter__()
        self.entered = self.portal.wrap_async_context_manager(self.make())
        self.store = self.entered.__enter__()
        self.journals: dict[str, list[bytes]] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.holders: dict[str, Lease] = {}
        self.leases: dict[str, list[Lease]] = {}

    def teardown(self) -> None:
        if hasattr(self, "entered"):
            self.entered.__exit__(None, None, None)
            self.portal_context.__exit__(None, None, None)

    def call(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def perform() -> Any:
            return await f(*args, **options)

        return self.portal.call(perform)

    @rule(run=RUNS)
    def claim(self, run: str) -> None:
        try:
            lease = self.call(self.store.claim, run, owner=str(Owner.new()), seconds=600)
        except RunBusy:
            assert run in self.holders
            return
        assert run not in self.holders
        known = self.leases.setdefault(run, [])
        assert all(lease.fence > older.fence for older in known)
        known.append(lease)
        self.holders[run] = lease

    @rule(run=RUNS, who=st.integers(0, 3), bodies=BODIES, off=st.sampled_from([0, 0, 0, -1, 1]))
    def append(self, run: str, who: int, bodies: list[bytes], off: int) -> None:
        if not self.leases.get(run):
            return
        lease = self.leases[run][-1 - who % len(self.leases[run])]
        journal = self.journals.get(run, [])
        # The first append of a run brings a record.
        bodies = bodies if journal else [*bodies, b"first"]
        status = RunStatus.RUNNING if len(journal) % 2 else RunStatus.FAILED
        summary = RunSummary("w", "standard", "1", status, 1.0)
        try:
            self.call(self.store.append, lease, bodies, after=len(journal) + off, summary=summary)
        except LeaseLost:
            assert self.holders.get(run) != lease or off
            return
        assert self.holders.get(run) == lease
        assert off == 0
        self.journals[run] = journal + bodies
        self.statuses[run] = status

    @rule(run=RUNS, who=st.integers(0, 3))
    def release(self, run: str, who: int) -> None:
        if not self.leases.get(run):
            return
        lease = self.leases[run][-1 - who % len(self.leases[run])]
        self.call(self.store.release, lease)
        if self.holders.get(run) == lease:
            del self.holders[run]

    @rule(run=RUNS)
    def delete(self, run: str) -> None:
        try:
            self.call(self.store.delete, run)
        except RunBusy:
            assert run in self.holders
        except RunNotFound:
            assert not self.journals.get(run)
        else:
            assert run not in self.holders
            del self.journals[run]

    @rule()
    def reopen(self) -> None:
        if self.store.durability == "memory":
            return
        self.entered.__exit__(None, None, None)
        self.entered = self.portal.wrap_async_context_manager(self.make())
        self.store = self.entered.__enter__()

    @invariant()
    def the_store_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        found = {info.run_id: info for info in self.call(self.store.find)}
        expected = {run: journal for run, journal in self.journals.items() if journal}
        assert found.keys() == expected.keys()
        for run, journal in expected.items():
            assert [record.body for record in self.call(self.store.read, run)] == journal
            assert found[run].length == len(journal)
            assert found[run].summary.status is self.statuses[run]
            held = self.holders.get(run)
            lease = found[run].lease
            assert (lease and lease.fence) == (held and held.fence)


def test_a_store_does_what_the_model_says(
    make_store_named: Callable[[str], Callable[[], CheckpointStore]],
) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__()
            # Each history begins with an empty store.
            self.make = make_store_named(uuid4().hex)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
