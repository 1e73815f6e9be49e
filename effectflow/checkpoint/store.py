"""The contract of a store: keep journals of bytes, find runs, and guard each run with a lease.

A store knows nothing about steps or values. For each run, it keeps an append-only list of records
numbered from 1, a summary for finding the run, and a lease. `effectflow.testing.store_conformance` has
the tests that every store must pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.schema import LATEST, frozen
from effectflow.effects.arguments import check_count


class RunStatus(StrEnum):
    """The status of a run, according to its newest entry."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
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
class RunSummary:
    """The properties by which queries find a run. An append may replace it.

    Attributes:
        workflow, kind, version: the workflow of the run.
        status: the status of the run.
        created_at: when it was created, in seconds since the epoch.
        dead_letters: the number of items of its jobs that failed and were neither retried nor dropped.
        due_at: the time from which a worker may take the run, in seconds since the epoch; None if none
            may. While a run is being driven, this is in the past: it is due as soon as nothing
            holds it. See `due_at_once`.
        priority: workers take runs with a higher priority first.
        waits_for: what a suspended run waits for, in words.
        blocked: why the last worker could not continue the run, in words; empty if it could.
        parent: the run that spawned it or within which it is nested; empty without one.
        is_nested: whether the parent drives it, so that no worker takes it.
    """

    workflow: str
    kind: str
    version: str
    status: RunStatus
    created_at: float
    dead_letters: int = 0
    due_at: float | None = None
    priority: int = 0
    waits_for: str = ""
    blocked: str = ""
    parent: str = ""
    is_nested: bool = False

    def become(self, status: RunStatus, *, due_at: float | None, waits_for: str) -> RunSummary:
        """Return the summary once the run has this status. It is not blocked then.

        A run that is due after the last time that can be stored is due then.
        """
        # Without `replace`, which takes twice as long.
        return RunSummary(
            self.workflow,
            self.kind,
            self.version,
            status,
            self.created_at,
            self.dead_letters,
            due_at=None if due_at is None else min(due_at, LATEST),
            priority=self.priority,
            waits_for=waits_for,
            parent=self.parent,
            is_nested=self.is_nested,
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line about a run.

    Attributes:
        run_id: the id of the run.
        summary: workflow, kind, version, status and time of creation.
        updated_at: when its newest record was written, in seconds since the epoch.
        length: the number of records in its journal.
        lease: the current lease, which may have expired; None if the run is not claimed.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    length: int
    lease: Lease | None

    def is_held(self, now: float) -> bool:
        """Return whether a live owner holds the run at `now`, in seconds since the epoch."""
        return self.lease is not None and self.lease.is_held(now)

    def is_resumable(self, now: float) -> bool:
        """Return whether the run has not ended and can be claimed at `now`."""
        return not self.summary.status.has_ended and not self.is_held(now)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to find. They are sorted by creation, newest first, then by id.

    Attributes:
        workflow: only runs of this workflow.
        prefix: only runs whose id begins with this.
        statuses: only runs with one of these; empty means any.
        updated_before: only runs whose newest record is older, in seconds since the epoch.
        resumable: only runs that have not ended and that no live owner holds.
        offset: skip this many runs, for paging.
        limit: return at most this many runs; None for all.
    """

    workflow: str | None = None
    prefix: str = ""
    statuses: frozenset[RunStatus] = frozenset()
    updated_before: float | None = None
    resumable: bool = False
    offset: int = 0
    limit: int | None = 100

    def matches(self, info: RunInfo, now: float) -> bool:
        """Return whether the query asks for this run, at `now` in seconds since the epoch."""
        return (
            (self.workflow is None or info.summary.workflow == self.workflow)
            and info.run_id.startswith(self.prefix)
            and (not self.statuses or info.summary.status in self.statuses)
            and (self.updated_before is None or info.updated_at < self.updated_before)
            and (not self.resumable or info.is_resumable(now))
        )


CANCEL = "cancel"
"""The topic of a request to cancel a run. The topics of signals begin with `signal:`."""

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
        body: the sealed value; empty for notices and requests to cancel.
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
    return topic == CANCEL and status in (RunStatus.PENDING, RunStatus.FAILED)


AT_ONCE_SINCE = 7200.0
"""A run that is due at once gets a due time this many seconds ago. So it is also due by a clock that is
behind by less than that, on another host or set back."""


def due_at_once(now: float) -> float:
    """Return the due time of a run that is due at once, at `now` in seconds since the epoch."""
    # Never before the epoch, at which the clock of a small computer may start.
    return max(now - AT_ONCE_SINCE, 0.0)


def has_result(status: RunStatus) -> bool:
    """Return whether a run with this status has a result. A failed run may be retried."""
    return status.has_ended or status is RunStatus.FAILED


def notifies_parent(summary: RunSummary) -> bool:
    """Return whether an append with this summary sends a notice to the parent: a spawned run ended."""
    return bool(summary.parent) and not summary.is_nested and has_result(summary.status)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the runs of one workflow, across all workers of a store.

    Attributes:
        limit: at most this many are held at the same time; None for no bound.
        per_second: at most this many pending runs are started within each second; less than 1 for one
            run in more than a second; None for no bound.
    """

    limit: int | None = None
    per_second: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_count("limit", self.limit, least=1)
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
        limits: limits by workflow.
    """

    workflows: frozenset[str]
    owners: Sequence[str]
    seconds: float
    now: float
    limits: Mapping[str, Limit] = field(default_factory=dict[str, Limit])


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that was claimed because it was due.

    Attributes:
        lease: the new lease.
        info: the run as it was before the claim. It has a lease if the last owner died or let the lease
            expire.
    """

    lease: Lease
    info: RunInfo


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

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        """Take the lease of a run for this many seconds. The run need not exist.

        A lease is free unless `Lease.is_held` at the time of the store. An owner that already holds the
        lease gets a new one.

        Raise RunBusy if another live owner holds it.
        """
        ...

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Extend the lease to this many seconds from now.

        The call blocks, for at most about five seconds, and does not need the event loop: any thread
        of this process may call it while the store is open.

        Raise LeaseLost if another owner has claimed the run since, and StoreUnavailable if the lease
        could not be renewed in time. It may have been renewed anyway.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release the lease if it is the current one of the run. Otherwise, do nothing."""
        ...

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        """Append records after record number `after`, all or none, in one transaction.

        Return once they are as durable as `durability` says. `summary` replaces the run's summary; the
        first append of a run needs one, and at least one record. `release` also releases the lease, in
        the same transaction.

        `takes` are the numbers of messages that are removed from the mailbox. If the mailbox has a
        message newer than number `seen`, the new summary is `due_at_once`, because the writer does not
        know that message. A summary of a run that has ended removes all its messages first. If
        `notifies_parent`, the mailbox of the parent receives a notice with the run's id as its
        key, as by `send`; nothing happens if the parent is unknown or has ended.

        Raise LeaseLost, and write nothing, if the lease is not the run's current one, the journal
        does not end at `after`, or a message of `takes` is gone. Raise SaveFailed if the records could
        not be written; its `is_unknown` says whether they may have been written anyway.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        """Return the records after number `after`, in order; an empty list if the run is unknown.

        The caller owns the list. A slow caller never blocks a writer.
        """
        ...

    async def info(self, run_id: str) -> RunInfo | None:
        """Return one line about a run, or None if it has no records."""
        ...

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        """Return the runs that match, newest first.

        Each run is returned once, even while others are added and removed. That does not hold across
        pages (`offset`).
        """
        ...

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        """Create a run with its first records, without claiming it, in one transaction.

        Return False, and change nothing, if the run exists.

        Raise RunBusy if a live owner holds the run, which has no records yet, and SaveFailed as `append`
        does.
        """
        ...

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        """Put a message into the mailbox of a run, in one transaction.

        Return False, and change nothing, if the run has already received a message with this topic and
        key, even if it has taken the message. Notices are always received.

        If the message `wakes` the run, the run is `due_at_once`, unless it was due before. A nested run
        is never due. Instead, its parent receives a notice with the run's id as its key, and so on
        outwards.

        Raise RunNotFound, RunEnded if the run is completed or cancelled, and SaveFailed as `append`
        does.
        """
        ...

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        """Return the messages of a run that were not taken, in order, from number `after` + 1 on."""
        ...

    async def claim_due(self, due: DueRuns) -> Claimed:
        """Claim runs that are due: `due_at` is not after `due.now`, and no live owner holds them.

        Runs with a higher priority come first, then those that have been due for longer. Two callers
        never claim the same run. The limits hold across all callers that pass the same ones.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        """Watch the runs of the store while the context is open.

        A change is a `create`, a `send`, an `append` with a summary, or a `delete`, by any process.
        """
        ...

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        """Delete a run, all its records and messages.

        The holder of the lease passes it, and it is gone afterwards.

        Raise RunNotFound if the run is unknown. With a lease, raise LeaseLost if it is not the current
        one of the run. Without one, raise RunBusy if a live owner holds the run.
        """
        ...

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        """Remove the records after record number `after`, and replace the summary, in one transaction.

        The run keeps at least one record, and the lease. If damage makes `read` raise, the records that
        are kept are those that `salvage` returns. If this fails or is interrupted, the run is as before
        or truncated, and the caller can try again.

        Raise LeaseLost, and change nothing, if the lease is not the run's current one or the journal has
        fewer than `after` records. Raise ValueError if `after` is less than 1.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class KeepsHistory(Protocol):
    """A store that overwrites the newest checkpoint of a run and keeps copies of earlier ones."""

    def keep_history(self, run_id: str, copies: int) -> None:
        """Keep this many copies for the run. Call it before the run is driven."""
        ...


@runtime_checkable
class ListsDamagedRuns(Protocol):
    """A store in which one run can be damaged while others are intact.

    Its `find` skips such a run and logs a warning that names it; `info` and `read` raise for it.
    """

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        ...


@runtime_checkable
class FallsBack(Protocol):
    """A store that reads an older copy of a run, and logs a warning, if the newest one is damaged."""

    async def damage(self, run_id: str) -> str | None:
        """Return how the newest copy of a run is damaged and what is read instead, or None."""
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


@runtime_checkable
class Salvages(Protocol):
    """A store in which damage can make `read` raise, although other records of the run are intact."""

    async def salvage(self, run_id: str) -> Remains:
        """Return everything that is left of a run."""
        ...


class store_errors:  # noqa: N801, used like a function in `with`
    """Turns every error of a store into a CheckpointError, which no body of an outer run can handle.

    Parameters:
        run_id: the run that the block is about; None for many.
    """

    # Not made by `contextmanager`, which takes three times as long.
    __slots__ = ("_run_id", "_store")

    def __init__(self, store: CheckpointStore, run_id: str | None = None) -> None:
        self._store = store
        self._run_id = run_id

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            return
        what = "" if self._run_id is None else f" for run {self._run_id!r}"
        raise StoreUnavailable(repr(self._store), f"it raised {error!r}{what}") from error
