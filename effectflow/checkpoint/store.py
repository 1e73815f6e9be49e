"""The contract of a store, in parts.

`CheckpointStore` keeps journals: for each run an append-only list of records numbered from 1, a summary
for finding the run, and a lease that guards it. A store knows nothing about steps or values.
`ServiceStore` adds what runs need that workers drive: messages, due times and notifications. A
`TransactionStore` is in a database in which users have tables of their own.
`effectflow.testing.store_conformance` has the tests that every store must pass.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeGuard, cast, runtime_checkable

from effectflow.checkpoint.errors import (
    CheckpointError,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease, delete_unchanged
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.schema import frozen
from effectflow.effects.arguments import check_count, check_text
from effectflow.effects.errors import Copyable


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

    async def among(self, run_ids: Collection[str]) -> Collection[str]:
        """Return those of these runs that may have changed, after `wait` has returned None.

        By default, these are all. A store may leave out a run that it has looked at in the last call,
        too, and that has not changed since.
        """
        return run_ids


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
