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
    precondition,
    rule,
    run_state_machine_as_test,
)

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import (
    CANCEL,
    Batch,
    CheckpointStore,
    Claimed,
    DueRuns,
    ServiceStore,
    Taken,
    wakes,
)
from tests.stores.conftest import MakeNamed
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


def summary_of(status: RunStatus, due: float | None = None, priority: int = 0) -> RunSummary:
    return RunSummary("w", status, 1.0, due, priority)


class StoreMachine(RuleBasedStateMachine):
    """All operations of a store, at either of two, with any lease.

    Attributes:
        journals, statuses, holders: of each run.
        dues: when the run is due; infinity if it became due at some moment of this test.
        mailboxes: the keys of the messages that were not taken, of each run.
        received: the keys of all messages.
    """

    make: Callable[[], CheckpointStore]

    @initialize()
    def open(self) -> None:
        self.portal_context = start_blocking_portal("asyncio")
        self.portal = self.portal_context.__enter__()
        self.entered: dict[int, AbstractContextManager[CheckpointStore]] = {}
        self.stores: dict[int, Any] = {}
        self.enter(0)
        if self.stores[0].durability == "memory":
            self.stores[1] = self.stores[0]
        else:
            self.enter(1)
        self.is_service = isinstance(self.stores[0], ServiceStore)
        self.journals: dict[str, list[bytes]] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.dues: dict[str, float | None] = {}
        self.mailboxes: dict[str, list[str]] = {}
        self.received: dict[str, set[str]] = {}
        self.holders: dict[str, Lease] = {}
        self.leases: list[Lease] = []
        self.outlived: list[Lease] = []
        self.used = 0
        self.create("a", 0, RunStatus.RUNNING, None, 0, with_lease=True)

    def enter(self, at: int) -> None:
        self.entered[at] = self.portal.wrap_async_context_manager(self.make())
        self.stores[at] = self.entered[at].__enter__()

    def teardown(self) -> None:
        if hasattr(self, "entered"):
            for entered in self.entered.values():
                entered.__exit__(None, None, None)
            self.portal_context.__exit__(None, None, None)

    def store(self, at: int) -> Any:
        self.used = at
        return self.stores[at]

    def call(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def perform() -> Any:
            return await f(*args, **options)

        return self.portal.call(perform)

    def holds(self, lease: Lease) -> bool:
        """Return whether this is the current lease of its run."""
        held = self.holders.get(lease.run_id)
        return held is not None and (held.fence, held.owner) == (lease.fence, lease.owner)

    def hold(self, lease: Lease) -> None:
        assert all(lease.fence > old.fence for old in self.leases if self.is_of(old, lease.run_id))
        self.leases.append(lease)
        self.holders[lease.run_id] = lease

    def is_of(self, lease: Lease, run: str) -> bool:
        """Return whether a lease is of a run since its last creation."""
        return lease.run_id == run and lease not in self.outlived

    @rule(run=RUNS, at=STORES)
    def claim(self, run: str, at: int) -> None:
        before = self.call(self.store(at).find, RunQuery(run_id=run))
        try:
            taken: Taken = self.call(self.store(at).claim, run, owner=str(Owner.new()), seconds=600)
        except RunBusy:
            assert run in self.holders
            return
        except RunNotFound:
            assert run not in self.journals
            return
        assert run not in self.holders
        assert [taken.info] == before
        self.hold(taken.lease)

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
        run, journal = lease.run_id, self.journals.get(lease.run_id, [])
        status = (RunStatus.SUSPENDED, RunStatus.RUNNING, RunStatus.FAILED)[len(journal) % 3]
        numbers = self.numbers(at, run)
        batch = Batch(
            bodies,
            len(journal) + off,
            summary_of(status, due) if with_summary else None,
            release,
            numbers[:takes],
            seen=max(numbers, default=0) if knows else 0,
        )
        try:
            self.call(self.store(at).append, lease, batch)
        except LeaseLost:
            assert not self.holds(lease) or off
            return
        assert self.holds(lease)
        assert off == 0
        journal += bodies
        del self.mailboxes[run][:takes]
        if with_summary:
            self.statuses[run] = status
            self.dues[run] = due
            if self.mailboxes[run] and not knows:
                self.becomes_due(run)
        if release:
            del self.holders[run]

    def numbers(self, at: int, run: str) -> list[int]:
        """Return the numbers of the messages of a run."""
        if not self.is_service:
            return []
        return [message.number for message in self.call(self.stores[at].mailbox, run)]

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
        with_lease=st.booleans(),
    )
    def create(
        self,
        run: str,
        at: int,
        status: RunStatus,
        due: float | None,
        priority: int,
        *,
        with_lease: bool,
    ) -> None:
        info: RunInfo | None = self.call(
            self.store(at).create,
            run,
            [b"created"],
            summary=summary_of(status, due, priority),
            owner=str(Owner.new()) if with_lease else "",
            seconds=600,
        )
        assert (info is None) is (run in self.journals)
        if info is None:
            return
        self.journals[run] = [b"created"]
        self.statuses[run], self.dues[run] = status, due
        self.mailboxes[run], self.received[run] = [], set()
        assert (info.lease is not None) is with_lease
        if info.lease is not None:
            self.hold(info.lease)

    @rule(run=RUNS, at=STORES, key=st.sampled_from("abcd"), topic=st.sampled_from(["go", CANCEL]))
    @precondition(lambda self: self.is_service)
    def send(self, run: str, at: int, key: str, topic: str) -> None:
        key = f"{topic} {key}"
        try:
            is_new = self.call(self.store(at).send, run, topic, key=key)
        except RunNotFound:
            assert run not in self.journals
            return
        assert is_new is (key not in self.received[run])
        if is_new:
            self.received[run].add(key)
            self.mailboxes[run].append(key)
            if wakes(topic, self.statuses[run]):
                self.becomes_due(run)

    @rule(at=STORES, most=st.integers(0, 3))
    @precondition(lambda self: self.is_service)
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
            self.hold(one.lease)
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
        summary = summary_of(RunStatus.INTERRUPTED)
        try:
            self.call(self.store(at).truncate, lease, after=after, summary=summary)
        except LeaseLost:
            assert not self.holds(lease) or after > len(journal)
            return
        assert self.holds(lease)
        del journal[after:]
        self.statuses[lease.run_id] = RunStatus.INTERRUPTED
        self.dues[lease.run_id] = None

    @rule(at=STORES, ages=st.lists(LEASES, max_size=3, unique=True))
    def renew(self, at: int, ages: list[int]) -> None:
        leases = [self.leases[-1 - age] for age in ages if age < len(self.leases)]
        renewed: list[Lease] = self.store(at).renew(leases, seconds=1200)
        current = [lease for lease in leases if self.holds(lease)]
        assert [(one.owner, one.fence) for one in renewed] == [
            (one.owner, one.fence) for one in current
        ]
        for old, new in zip(current, renewed, strict=True):
            assert new.expires_at > old.expires_at

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
            assert run not in self.journals
        else:
            assert run not in self.holders
            for kept in (self.journals, self.statuses, self.mailboxes, self.received, self.dues):
                del kept[run]
            self.outlived += [lease for lease in self.leases if lease.run_id == run]

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
        store = self.stores[1 - self.used]
        found = {info.run_id: info for info in self.call(store.find)}
        assert found.keys() == self.journals.keys()
        for run, journal in self.journals.items():
            for store in self.stores.values():
                assert [record.body for record in self.call(store.read, run)] == journal
                if self.is_service:
                    keys = [message.key for message in self.call(store.mailbox, run)]
                    assert keys == self.mailboxes[run]
            assert found[run].length == len(journal)
            assert found[run].summary.status is self.statuses[run]
            due, due_at = self.dues[run], found[run].summary.due_at
            assert due_at == due or (due == math.inf and due_at is not None and due_at < FAR)
            held = self.holders.get(run)
            lease = found[run].lease
            assert (lease and lease.fence) == (held and held.fence)


@examples(3, 50)
def test_a_store_agrees_with_the_model(make_store_named: MakeNamed, examples: int) -> None:
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
