"""Every store against a model of what it should contain, over generated histories."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from effectflow.checkpoint import (
    CheckpointStore,
    Claimed,
    DueRuns,
    KeepsHistory,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunInfo,
    RunNotFound,
    RunStatus,
    RunSummary,
)
from effectflow.checkpoint.store import CANCEL, wakes
from tests.sweeps import examples

RUNS = st.sampled_from(["a", "a", "b/../b"])
LEASES = st.sampled_from([0, 0, 0, 1, 2, 3])
"""How many leases, of any run, are newer than the one to use."""
BODIES = st.lists(st.binary(max_size=20), max_size=3)
STORES = st.integers(0, 1)
"""Two stores are open over the same data, as in two processes."""
FAR = 1e10
DUES = st.sampled_from([None, None, 1.0, 2.0, FAR])
PRIORITIES = st.sampled_from([0, 0, 5])


class StoreMachine(RuleBasedStateMachine):
    """All operations of a store, at either of two, with any lease.

    Attributes:
        journals, statuses, holders: of each run.
        mailboxes: the keys of the messages that were not taken, of each run.
        received: the keys of all messages.
        dues: when the run is due; infinity if it became due at some moment of this test.
    """

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
        self.mailboxes: dict[str, list[str]] = {}
        self.received: dict[str, set[str]] = {}
        self.dues: dict[str, float | None] = {}
        self.holders: dict[str, Lease] = {}
        self.leases: list[Lease] = []
        self.used = 0
        self.claim("a", 0)
        self.append(0, 0, [b"0"], 0, 0, None, knows=True, with_summary=True, release=False)

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
        takes=st.sampled_from([0, 0, 1, 2]),
        due=DUES,
        knows=st.booleans(),
        with_summary=st.booleans(),
        release=st.sampled_from([False, False, True]),
    )
    def append(
        self,
        at: int,
        age: int,
        bodies: list[bytes],
        off: int,
        takes: int,
        due: float | None,
        *,
        knows: bool,
        with_summary: bool,
        release: bool,
    ) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        journal = self.journals.get(lease.run_id, [])
        statuses = [RunStatus.SUSPENDED, RunStatus.RUNNING, RunStatus.FAILED]
        status = statuses[len(journal) % 3]
        summary = RunSummary("w", "standard", "1", status, 1.0, due_at=due)
        numbers = [message.number for message in self.call(self.stores[at].mailbox, lease.run_id)]
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
                takes=numbers[:takes],
                seen=max(numbers, default=0) if knows else 0,
            )
        except LeaseLost:
            assert not self.holds(lease) or off
            return
        assert self.holds(lease)
        assert off == 0
        self.journals[lease.run_id] = journal + bodies
        mailbox = self.mailboxes.setdefault(lease.run_id, [])
        self.received.setdefault(lease.run_id, set())
        del mailbox[:takes]
        if with_summary:
            self.statuses[lease.run_id] = status
            self.dues[lease.run_id] = due
            if mailbox and not knows:
                self.becomes_due(lease.run_id)
        if release:
            del self.holders[lease.run_id]

    def becomes_due(self, run: str) -> None:
        due = self.dues[run]
        if due is None or due == FAR:
            self.dues[run] = math.inf

    @rule(
        run=RUNS,
        at=STORES,
        status=st.sampled_from([RunStatus.PENDING, RunStatus.SUSPENDED]),
        due=DUES,
        priority=PRIORITIES,
    )
    def create(
        self, run: str, at: int, status: RunStatus, due: float | None, priority: int
    ) -> None:
        summary = RunSummary("w", "standard", "1", status, 1.0, due_at=due, priority=priority)
        try:
            is_new = self.call(self.store(at).create, run, [b"created"], summary=summary)
        except RunBusy:
            assert run in self.holders
            assert not self.journals.get(run)
            return
        assert is_new is not bool(self.journals.get(run))
        if is_new:
            self.journals[run] = [b"created"]
            self.statuses[run] = status
            self.mailboxes[run], self.received[run] = [], set()
            self.dues[run] = due

    @rule(run=RUNS, at=STORES, key=st.sampled_from("abcd"), topic=st.sampled_from(["go", CANCEL]))
    def send(self, run: str, at: int, key: str, topic: str) -> None:
        key = f"{topic} {key}"
        try:
            is_new = self.call(self.store(at).send, run, topic, key=key)
        except RunNotFound:
            assert not self.journals.get(run)
            return
        assert is_new is (key not in self.received[run])
        if is_new:
            self.received[run].add(key)
            self.mailboxes[run].append(key)
            if wakes(topic, self.statuses[run]):
                self.becomes_due(run)

    @rule(at=STORES, most=st.integers(0, 3))
    def claim_due(self, at: int, most: int) -> None:
        now = time.time()
        owners = [str(Owner.new()) for _ in range(most)]
        found: list[RunInfo] = self.call(self.stores[at].find)
        infos = {info.run_id: info.summary for info in found}
        ranks = {
            run: (-infos[run].priority, infos[run].due_at)
            for run, at_time in self.dues.items()
            if at_time not in (None, FAR) and run not in self.holders
        }
        claimed: Claimed = self.call(
            self.store(at).claim_due, DueRuns(frozenset(["w"]), owners, 600, now + 1)
        )
        taken = [one.lease.run_id for one in claimed.runs]
        assert len(taken) == len(set(taken))
        # Of runs that have been due for equally long, either may come first.
        assert [ranks[run] for run in taken] == sorted(ranks.values())[:most]
        for one in claimed.runs:
            self.leases.append(one.lease)
            self.holders[one.lease.run_id] = one.lease
        later = {run for run, at_time in self.dues.items() if at_time == FAR}
        if later <= self.holders.keys():
            assert claimed.next_due_at in ((FAR, None) if later else (None,))
        else:
            assert claimed.next_due_at == FAR

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
        self.dues[lease.run_id] = None

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
            for kept in (self.journals, self.mailboxes, self.received, self.dues):
                del kept[run]

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
                keys = [message.key for message in self.call(store.mailbox, run)]
                assert keys == self.mailboxes[run]
            assert found[run].length == len(journal)
            assert found[run].summary.status is self.statuses[run]
            due, due_at = self.dues[run], found[run].summary.due_at
            assert due_at == due or (due == math.inf and due_at is not None and due_at < FAR)
            held = self.holders.get(run)
            lease = found[run].lease
            assert (lease and lease.fence) == (held and held.fence)


@examples(4, 50)
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
