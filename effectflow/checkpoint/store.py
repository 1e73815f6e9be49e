"""The contract of a store, in parts.

`CheckpointStore` keeps journals: for each run an append-only list of records numbered from 1, a summary
for finding the run, and a lease that guards it. A store knows nothing about steps or values.
`ServiceStore` adds what runs need that workers drive: messages, due times and notifications. A
`TransactionStore` is in a database in which users have tables of their own.
`effectflow.testing.store_conformance` has the tests that every store must pass.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeGuard, cast, runtime_checkable

import orjson

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    SaveFailed,
    StoreUnavailable,
    process_of,
)
from effectflow.checkpoint.lease import Lease, delete_unchanged
from effectflow.checkpoint.schema import LATEST, frozen, schema_of
from effectflow.effects.arguments import check_count, check_text, check_type
from effectflow.effects.errors import Copyable


class RunStatus(StrEnum):
    """The status of a run, according to its newest entry, or `blocked`: it could not be continued."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    BLOCKED = "blocked"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPLETED = "completed"

    @property
    def has_ended(self) -> bool:
        """Whether the run is completed or cancelled, so that no resume continues it."""
        return self in _ENDED

    @staticmethod
    def stored(text: str, run_id: str) -> RunStatus:
        """Return the status that a store keeps as text. Raise CorruptCheckpoint for an unknown one."""
        try:
            return RunStatus(text)
        except ValueError:
            reason = f"its status {text!r} is unknown to this version of effectflow"
            raise CorruptCheckpoint(run_id, reason) from None


_ENDED = (RunStatus.COMPLETED, RunStatus.CANCELLED)


@frozen
class Record:
    """One entry of a journal, as a store keeps it.

    Attributes:
        sequence: its position in the journal; the first is 1.
        written_at: when it was written, in seconds since the epoch.
        body: the encoded entry.
    """

    sequence: int
    written_at: float
    body: bytes


@frozen
class RunDetails:
    """What is shown about a run, but never looked for. A store keeps it as one text.

    Attributes:
        kind, version: those of the workflow of the run.
        dead_letters: the number of items of its jobs that failed and were neither retried nor dropped.
        waits_for: what a suspended run waits for, in words.
        blocked: why the last process could not continue a blocked run, in words; empty for others.
        error: why a failed run has failed, in words; only the class of the error with encryption.
        owner: the owner of the lease under which it has failed.
    """

    kind: str = "standard"
    version: str = "1"
    dead_letters: int = 0
    waits_for: str = ""
    blocked: str = ""
    error: str = ""
    owner: str = ""

    def to_json(self) -> str:
        """Return it as the text that stores keep."""
        return orjson.dumps(schema_of(RunDetails).write(self)).decode()

    @staticmethod
    def from_json(text: str, run_id: str) -> RunDetails:
        """Return the details of a run. Raise CorruptCheckpoint for other texts than of `to_json`."""
        try:
            return schema_of(RunDetails).read(dict(orjson.loads(text)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(run_id, f"its details cannot be read: {error!r}") from None


_NO_DETAILS = RunDetails()


@frozen
class RunSummary:
    """The properties by which stores find a run. An append may replace it.

    Attributes:
        workflow: the name of its workflow.
        status: the status of the run.
        created_at: when it was created, in seconds since the epoch.
        due_at: the time from which a worker may take the run, in seconds since the epoch; None if none
            may. While a run is being driven, this is in the past: it is due as soon as nothing
            holds it. See `due_at_once`.
        priority: workers take runs with a higher priority first.
        parent: the run that spawned it; empty without one.
        tenant: what is under "tenant" in the context of the run, as text or JSON; empty without it.
        queue: the queue it was submitted to; empty for the one with the name of its workflow.
        key: whose run it is, such as a tenant: the keys of a queue take turns; empty for none.
        details: what is shown about it.
    """

    workflow: str
    status: RunStatus
    created_at: float
    due_at: float | None = None
    priority: int = 0
    parent: str = ""
    tenant: str = ""
    queue: str = ""
    key: str = ""
    details: RunDetails = _NO_DETAILS

    @property
    def queue_name(self) -> str:
        """The name of its queue."""
        return self.queue or self.workflow

    @property
    def turn(self) -> str:
        """Its key, if it waits for its turn: it has not begun, and was due when it was made; or empty.

        Other runs are claimed by their due times.
        """
        is_new = self.status is RunStatus.PENDING
        was_due = self.due_at is not None and self.due_at <= self.created_at
        return self.key if is_new and was_due else ""

    def become(self, status: RunStatus, *, due_at: float | None, waits_for: str) -> RunSummary:
        """Return the summary once the run has this status. It is not blocked then.

        A run that is due after the last time that can be stored is due then.
        """
        details = self.details
        if details.waits_for != waits_for or details.blocked:
            details = replace(details, waits_for=waits_for, blocked="")
        # Without `replace`, which takes twice as long.
        return RunSummary(
            self.workflow,
            status,
            self.created_at,
            None if due_at is None else min(due_at, LATEST),
            self.priority,
            self.parent,
            self.tenant,
            self.queue,
            self.key,
            details,
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line about a run.

    Attributes:
        run_id: the id of the run.
        summary: its workflow, status, time of creation and more.
        updated_at: when its newest record was written, in seconds since the epoch.
        length: the number of records in its journal.
        lease: the current lease, which may have expired; None if the run is not claimed.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    length: int
    lease: Lease | None

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the order of queries, newest first: the time of its creation, and its id."""
        return self.summary.created_at, self.run_id

    @property
    def process(self) -> str:
        """The process that drives it, or drove it last, such as "process 4711 on host"; "" if unknown."""
        text = self.summary.details.owner if self.lease is None else self.lease.owner
        return process_of(text)

    def is_held(self, now: float) -> bool:
        """Return whether a live owner holds the run at `now`, in seconds since the epoch."""
        return self.lease is not None and self.lease.is_held(now)

    def is_unchanged(self, known: RunInfo) -> bool:
        """Return whether the run has the same length and summary as it had."""
        return (self.length, self.summary) == (known.length, known.summary)

    def is_resumable(self, now: float) -> bool:
        """Return whether the run has not ended and can be claimed at `now`."""
        return not self.summary.status.has_ended and not self.is_held(now)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to find. They are sorted by creation, newest first, then by id.

    Attributes:
        run_id: only the run with this id.
        workflow: only runs of this workflow.
        prefix: only runs whose id begins with this.
        parent: only runs that this run has spawned.
        tenant: only runs with this text under "tenant" in their context.
        statuses: only runs with one of these; empty means any.
        updated_before, updated_since: only runs whose newest record is older, or not older, in seconds
            since the epoch.
        resumable: only runs that have not ended and that no live owner holds.
        crashed: only those of them that were running.
        after: only runs behind this place, the `RunInfo.place` of the last run of the page before.
        limit: return at most this many runs; None for all.
    """

    run_id: str | None = None
    workflow: str | None = None
    prefix: str = ""
    parent: str | None = None
    tenant: str | None = None
    statuses: frozenset[RunStatus] = frozenset()
    updated_before: float | None = None
    updated_since: float | None = None
    resumable: bool = False
    crashed: bool = False
    after: tuple[float, str] | None = None
    limit: int | None = 100

    def __post_init__(self) -> None:
        # Each store would understand them in its own way.
        of = "statuses takes a frozenset, such as frozenset({RunStatus.FAILED})"
        check_type(self.statuses, frozenset, of)
        if self.limit is not None:
            check_count("limit", self.limit, least=0)
        for name in ("updated_before", "updated_since"):
            at: object = getattr(self, name)
            if not isinstance(at, int | float | None):
                raise TypeError(
                    f"{name} takes seconds since the epoch, not {at!r}: write .timestamp()"
                )

    def matches(self, info: RunInfo, now: float) -> bool:
        """Return whether the query asks for this run, at `now` in seconds since the epoch."""
        summary = info.summary
        return (
            (self.run_id is None or info.run_id == self.run_id)
            and (self.workflow is None or summary.workflow == self.workflow)
            and info.run_id.startswith(self.prefix)
            and (self.parent is None or summary.parent == self.parent)
            and (self.tenant is None or summary.tenant == self.tenant)
            and (not self.statuses or summary.status in self.statuses)
            and (self.updated_before is None or info.updated_at < self.updated_before)
            and (self.updated_since is None or info.updated_at >= self.updated_since)
            and (not self.crashed or summary.status is RunStatus.RUNNING)
            and (self.after is None or is_behind(info.place, self.after))
            and (not (self.resumable or self.crashed) or info.is_resumable(now))
        )


def is_behind(place: tuple[float, str], other: tuple[float, str]) -> bool:
    """Return whether a place comes after another one: older, or with a greater id if as old."""
    return place[0] < other[0] or (place[0] == other[0] and place[1] > other[1])


CANCEL = "cancel"
"""The topic of a request to cancel a run. The topics of signals begin with `signal:`."""

PAUSE = "pause"
"""The topic of a request to pause a run that a process drives."""

NOTICE = "notice"
"""The topic of a notice, which only asks a run to look at another run. Its key is the id of that run. A
run may receive the same notice again and again."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the mailbox of a run.

    Attributes:
        number: grows with each message of the run.
        topic: what it is about.
        key: its idempotency key: except for notices, a run receives only one message with a topic and
            a key.
        sent_at: when it was sent, in seconds since the epoch.
        body: the sealed value; empty for notices.
    """

    number: int
    topic: str
    key: str
    sent_at: float
    body: bytes


def wakes(topic: str, status: RunStatus) -> bool:
    """Return whether a message makes a run of this status due at once."""
    if status is RunStatus.SUSPENDED:
        return True
    return topic == CANCEL and status in _WOKEN_BY_CANCEL


_WOKEN_BY_CANCEL = (
    RunStatus.PENDING,
    RunStatus.INTERRUPTED,
    RunStatus.PAUSED,
    RunStatus.BLOCKED,
    RunStatus.FAILED,
)


DUE_SINCE = 7200.0
"""A run that is due at once gets a due time this many seconds ago. So it is also due by a clock that is
behind by less than that, on another host or set back."""


def due_at_once(now: float) -> float:
    """Return the due time of a run that is due at once, at `now` in seconds since the epoch."""
    # Never before the epoch, at which the clock of a small computer may start.
    return max(now - DUE_SINCE, 0.0)


def has_result(status: RunStatus) -> bool:
    """Return whether a run with this status has a result. A failed run may be retried."""
    return status.has_ended or status is RunStatus.FAILED


def notifies_parent(summary: RunSummary) -> bool:
    """Return whether an append with this summary sends a notice to the parent: a spawned run ended."""
    return bool(summary.parent) and has_result(summary.status)


@dataclass(frozen=True, slots=True)
class Queue:
    """The limits of a queue of runs, which all workers of a store share.

    A run is in the queue that `submit(queue=)` names, otherwise in the one with the name of its workflow.
    So `Queue("order")` also limits the runs of workflow `order` that were submitted without a queue.

    Attributes:
        name: the name of the queue, or of a workflow.
        limit: at most this many of its runs are held at the same time; 0 for a queue that is stopped;
            None for no bound.
        per_second: at most this many pending runs are started within each second; less than 1 for one
            run in more than a second; None for no bound.
        per_key: at most this many runs with the same key are held at the same time; None for no bound.
        priority: is added to the priority of each of its runs.
    """

    name: str
    limit: int | None = None
    per_second: float | None = None
    per_key: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        check_text("the name of a queue", self.name)
        if not self.name:
            raise ValueError(
                "the name of a queue is that which `submit(queue=)` names, or of a workflow"
            )
        if type(self.priority) is not int:
            raise TypeError(f"priority must be an int, not {self.priority!r}")
        if self.limit is not None:
            check_count("limit", self.limit, least=0)
        if self.per_key is not None:
            check_count("per_key", self.per_key, least=1)
        if self.per_second is not None and not 0 < self.per_second < math.inf:
            raise ValueError(f"per_second must be a finite number above 0, not {self.per_second}")

    @property
    def window(self) -> tuple[int, float]:
        """The number of runs that may be started within a number of seconds; (1, 0.0) without a bound."""
        if self.per_second is None:
            return 1, 0.0
        if self.per_second >= 1:
            return int(self.per_second), int(self.per_second) / self.per_second
        return 1, 1 / self.per_second


@dataclass(frozen=True, slots=True)
class DueRuns:
    """A request to claim runs that are due.

    Attributes:
        workflows: the workflows that the claimant can drive.
        owners: an owner for each run that it wants at most.
        seconds: how long the leases are valid.
        now: the time by the clock of the claimant, in seconds since the epoch. It is compared with
            `due_at`; leases expire by the clock of the store.
        queues: the queues with limits, by name.
    """

    workflows: frozenset[str]
    owners: Sequence[str]
    seconds: float
    now: float
    queues: Mapping[str, Queue] = field(default_factory=dict[str, Queue])


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that was claimed.

    Attributes:
        lease: the new lease.
        info: the run as it was before the claim. It has a lease if the last owner died or let the lease
            expire.
        first: the only record of a run that has received no message, if the store has read it with the
            claim. The claimant then need not ask for its journal and its messages.
    """

    lease: Lease
    info: RunInfo
    first: Record | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to `DueRuns`.

    Attributes:
        runs: the runs that were claimed.
        next_due_at: when the next of the others is due, in seconds since the epoch, if that lies after
            `now`; None if none waits for a time. Runs whose lease is held may count.
    """

    runs: tuple[Taken, ...] = ()
    next_due_at: float | None = None


class Changes(Protocol):
    """Tells which runs changed. Notifications may be lost, so also look from time to time."""

    async def wait(self, seconds: float) -> frozenset[str] | None:
        """Wait for a change, for at most this many seconds.

        Return the ids of the runs that changed since the last call, an empty set if none did in that
        time, or None if any run may have changed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Remains:
    """Everything that a store has of a run, damaged or not.

    Attributes:
        records: those that can be read, in order. Some may be missing.
        unreadable: the bytes that cannot be read as records, by the name of the place where they are.
    """

    records: list[Record]
    unreadable: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store tells about itself, besides its name and its durability.

    Attributes:
        layout: the version of the layout of its data (docs/format.md); None if it has none.
        size: the bytes that it takes, with its logs; None if that is not quickly known.
        is_read_only: whether this process can only read it.
    """

    layout: int | None = None
    size: int | None = None
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one append changes, all or nothing.

    Attributes:
        bodies: the new records.
        after: the number of the record that they follow: the length that the journal must have.
        summary: replaces the summary of the run; None to keep it.
        release: whether to release the lease.
        takes: the numbers of messages to remove from the mailbox of the run. Only a `ServiceStore` has
            any.
        seen: the number of the newest message that the writer knows; None if it does not say. If the
            mailbox has a newer one that `wakes` the run, the new summary is due at once (`due_at_once`).
    """

    bodies: Sequence[bytes]
    after: int
    summary: RunSummary | None = None
    release: bool = False
    takes: Sequence[int] = ()
    seen: int | None = None


class CheckpointStore(Protocol):
    """The storage environment of durable runs: journals of bytes, guarded by leases.

    Every store is an async context manager, works on asyncio and trio, and is safe for many
    concurrent runs. Entering it again while it is open is cheap, and only the last exit closes it. A
    method that is cancelled may or may not have taken effect, unless its description says more.
    """

    @property
    def durability(self) -> str:
        """What the data survives: "full" (power loss), "process" (kill -9) or "memory" (nothing)."""
        ...

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        """Create a run with its first records, at least one, in one transaction. Return it.

        Return None, and change nothing, if the run exists. With an `owner`, the new run has a lease of
        that owner, for this many seconds.

        Raise ValueError without a record. Raise SaveFailed if the records could not be written; its
        `is_unknown` says whether they may have been written anyway.
        """
        ...

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        """Take the lease of a run for this many seconds. Return it, and the run as it was before.

        A lease is free unless `Lease.is_held` at the time of the store. An owner that already holds the
        lease gets a new one. A run whose summary cannot be read can be claimed, too, so that a repair can
        hold it: the summary that is returned then has an empty `workflow`.

        Raise RunNotFound if the run does not exist, and RunBusy if another live owner holds it.
        """
        ...

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Extend leases to this many seconds from now. Return the renewed ones, in order.

        Those that are not current any more, because another owner has claimed the run since or the run
        is gone, are left out.

        The call blocks, for at most about five seconds, and does not need the event loop: any thread
        of this process may call it while the store is open.

        Raise StoreUnavailable if the leases could not be renewed in time. They may have been renewed
        anyway.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release the lease if it is the current one of the run. Otherwise, do nothing."""
        ...

    async def append(self, lease: Lease, batch: Batch) -> None:
        """Append records, all or none, with the rest of the batch in one transaction.

        Return once they are as durable as `durability` says. A summary of a run that has ended removes
        all its messages. If it `notifies_parent`, the mailbox of the parent receives a notice with the
        run's id as its key, as by `ServiceStore.send`; nothing happens if the parent is unknown or has
        ended.

        Raise LeaseLost, and write nothing, if the lease is not the run's current one, the journal
        does not end at `batch.after`, or a message of `batch.takes` is gone. Raise SaveFailed as
        `create` does.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        """Return the records after number `after`, in order; an empty list if the run is unknown.

        The caller owns the list. A slow caller never blocks a writer.
        """
        ...

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        """Return the runs that match, newest first.

        Each run is returned once, even while others are added and removed. Skip damaged runs, and log a
        warning that names each. But raise CorruptCheckpoint if `query.run_id` names a damaged run.
        """
        ...

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        """Delete a run, all its records and messages.

        The holder of the lease passes it, and it is gone afterwards.

        Raise RunNotFound if the run is unknown. With a lease, raise LeaseLost if it is not the current
        one of the run. Without one, raise RunBusy if a live owner holds the run.
        """
        ...

    async def delete_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Delete those of these runs that are as given, and return their ids.

        A run that has another length or summary, that a live owner holds, or that is gone, is skipped.
        Each run is deleted completely or not at all.
        """
        return [known.run_id for known in runs if await delete_unchanged(self, known)]

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        """Remove the records after record number `after`, and replace the summary, in one transaction.

        The run keeps at least one record, and the lease. If damage makes `read` raise, the records that
        are kept are those that `salvage` returns. If this fails or is interrupted, the run is as before
        or truncated, and the caller can try again.

        Raise LeaseLost, and change nothing, if the lease is not the run's current one or the journal has
        fewer than `after` records. Raise ValueError if `after` is less than 1.
        """
        ...

    async def salvage(self, run_id: str) -> Remains:
        """Return everything that is left of a run, even if damage makes `read` raise."""
        return Remains(await self.read(run_id))

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        return []

    async def facts(self) -> StoreFacts:
        """Return what the store tells about itself, in a short time."""
        return StoreFacts()

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class ServiceStore(CheckpointStore, Protocol):
    """A store that workers can use: its runs receive messages, and wait for times without a process."""

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        """Put a message into the mailbox of a run, in one transaction.

        Return False, and change nothing, if the run has already received a message with this topic and
        key, even if it has taken the message. Notices are always received.

        If the message `wakes` the run, the run is due at once (`due_at_once`), unless it was due before.

        Raise RunNotFound, RunEnded if the run is completed or cancelled, MailboxFull for a signal for
        which the mailbox has no room (16 MiB, and each message counts as 1 KiB more than its body), and
        SaveFailed as `create` does.
        """
        ...

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        """Return the messages of a run that were not taken, in order, from number `after` + 1 on."""
        ...

    async def claim_due(self, due: DueRuns) -> Claimed:
        """Claim runs that are due: `due_at` is not after `due.now`, and no live owner holds them.

        Runs with a higher priority come first, then those that have been due for longer. Those of a queue
        that wait for their `turn` are claimed one of each key after another. Two callers never claim the
        same run. The limits hold across all callers that pass the same queues.
        """
        ...

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        """Keep a setting that all who use the store share, or remove it with None.

        Its kind is one word without a colon. This is no change of a run, so it wakes nobody.
        """
        ...

    async def settings(self, kind: str) -> Mapping[str, bytes]:
        """Return the settings of a kind, by name.

        Workers read those of some kinds twice per second, so that must not read those of other kinds.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        """Watch the runs of the store while the context is open.

        A change is a `create`, a `send`, an `append` with a summary, or a `delete`, by any process.
        """
        ...


class TransactionUndone(Copyable, Exception):
    """The database has undone a transaction, or lost it, and nothing of it is written.

    Attributes:
        error: the error of the driver.
        is_final: whether it would be undone again, because it breaks a constraint that is checked at the
            commit. Otherwise, it was undone because of another one: perform it again.
    """

    def __init__(self, error: Exception, *, is_final: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class Transaction(Protocol):
    """A transaction of the database of a store."""

    async def perform(self, body: Callable[[Any], Any]) -> Any:
        """Call `body(connection)` in the transaction. Return its value, or what its coroutine returns.

        The connection is of no use afterwards. Raise what the body raises, TransactionUndone, or
        StoreUnavailable without calling it.
        """
        ...

    async def append(self, lease: Lease, batch: Batch) -> None:
        """Append as `CheckpointStore.append` does, in this transaction, and commit it.

        Raise TransactionUndone if nothing was written, because of this or another transaction.
        """
        ...


@runtime_checkable
class TransactionStore(CheckpointStore, Protocol):
    """A store in a database in whose transactions users may change their own tables."""

    @property
    def has_async_connections(self) -> bool:
        """Whether the bodies of transactions are async functions. Otherwise, they are plain ones."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction. Unless it has appended when the context ends, it is rolled back.

        Nothing else may be appended to the run meanwhile. Raise StoreUnavailable.
        """
        ...

    async def create_within(
        self, connection: Any, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary
    ) -> bool:
        """Create a run as `create` does, in the transaction of a connection to the same database.

        Return False, and change nothing, if the run exists. Others learn of it after the commit.

        Raise TypeError for a connection of another kind, ValueError if it is to another database or would
        commit at once, and errors of the driver.
        """
        ...


async def find_run(store: CheckpointStore, run_id: str) -> RunInfo | None:
    """Return one line about a run, or None if there is none. Raise CorruptCheckpoint if it is damaged."""
    found = await store.find(RunQuery(run_id=run_id, limit=1))
    return found[0] if found else None


async def find_in_pages(store: CheckpointStore, query: RunQuery) -> AsyncGenerator[RunInfo]:
    """Yield all runs that match, newest first. A page, of `query.limit`, is read when it is needed."""
    while page := await store.find(query):
        for info in page:
            yield info
        if len(page) < (query.limit or 0):
            return
        query = replace(query, after=page[-1].place)


def is_service(store: CheckpointStore) -> TypeGuard[ServiceStore]:
    """Return whether a store has the methods that workers need."""
    return _satisfies(store, ServiceStore)


def _satisfies(store: CheckpointStore, protocol: type) -> bool:
    # Each run asks, and Python takes as long to compare a protocol as a short statement takes.
    known = type(store), protocol
    if known not in _satisfied:
        _satisfied[known] = isinstance(store, protocol)
    return _satisfied[known]


_satisfied: dict[tuple[type, type], bool] = {}


def service_of(store: CheckpointStore, purpose: str) -> ServiceStore:
    """Return the store as one that workers can use.

    Raise StoreUnavailable, which says what it was needed for, if it only keeps journals.
    """
    if is_service(store):
        return store
    raise StoreUnavailable(
        repr(store),
        f"it keeps journals only, and {purpose} needs messages and due times. Use MemoryStore, "
        "SqliteStore, PostgresStore or RedisStore",
    )


def transactions_of(store: CheckpointStore, purpose: str) -> TransactionStore:
    """Return the store as one in which users have their own tables.

    Raise StoreUnavailable, which says what it was needed for, if it is not in such a database.
    """
    if _satisfies(store, TransactionStore):
        return cast("TransactionStore", store)
    raise StoreUnavailable(
        repr(store),
        f"it is not in a database with tables of your own, which {purpose} needs. Use SqliteStore or "
        "PostgresStore",
    )


class store_errors:  # noqa: N801, used like a function in `with`
    """Turns every error of a store into a CheckpointError, which no body of an outer run can handle.

    Parameters:
        run_id: the run that the block is about; None for many.
        saves: what the block saves, which a SaveFailed names.
    """

    # Not made by `contextmanager`, which takes three times as long.
    __slots__ = ("_run_id", "_saves", "_store")

    def __init__(
        self,
        store: CheckpointStore,
        run_id: str | None = None,
        *,
        saves: Literal["entry", "run", "message"] = "entry",
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._saves: Literal["entry", "run", "message"] = saves

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if isinstance(error, SaveFailed) and self._saves != "entry":
            raise SaveFailed(
                error.run_id, error.reason, is_unknown=error.is_unknown, what=self._saves
            ) from error
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            return
        what = "" if self._run_id is None else f" for run {self._run_id!r}"
        raise StoreUnavailable(repr(self._store), f"it raised {error!r}{what}") from error
