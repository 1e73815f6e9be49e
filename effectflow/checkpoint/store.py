"""What a store must do: keep journals of bytes, find runs, and guard each run by a lease.

A store knows nothing of steps or values. It keeps, for every run, an append-only list of records
numbered from 1, a one-line summary to find the run by, and the lease. Everything above is built from
that, so a new store is one small file; `effectflow.testing` has the suite that it must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease

__all__ = [
    "CheckpointStore",
    "FallsBack",
    "KeepsHistory",
    "ListsDamagedRuns",
    "Record",
    "RunInfo",
    "RunQuery",
    "RunStatus",
    "RunSummary",
]


class RunStatus(StrEnum):
    """Where a run stands, as its newest entry says."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPLETED = "completed"

    @staticmethod
    def stored(text: str, run_id: str) -> RunStatus:
        """The status that a store keeps as text. Raises CorruptCheckpoint for one that is unknown."""
        try:
            return RunStatus(text)
        except ValueError:
            reason = f"its status is {text!r}, which is none that this effectflow knows"
            raise CorruptCheckpoint(run_id, reason) from None


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a journal as a store keeps it.

    Attributes:
        sequence: its place in the journal; the first is 1.
        written_at: when it was written, in seconds since the epoch.
        body: the encoded entry.
    """

    sequence: int
    written_at: float
    body: bytes


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run is found by. A store replaces it whenever an append brings a new one."""

    workflow: str
    kind: str
    version: str
    status: RunStatus
    created_at: float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line about a run.

    Attributes:
        run_id: its id.
        summary: workflow, kind, version, status and time of creation.
        updated_at: when its newest record was written, in seconds since the epoch.
        length: how many records its journal has.
        lease: who holds it now, or None when nobody does. It may have expired.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    length: int
    lease: Lease | None

    def is_held(self, now: float) -> bool:
        """Whether a live owner holds the run at `now`, in seconds since the epoch."""
        return self.lease is not None and self.lease.is_held(now)

    def is_resumable(self, now: float) -> bool:
        """Whether the run is unfinished and free to be claimed at `now`."""
        return self.summary.status is not RunStatus.COMPLETED and not self.is_held(now)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to find; the newest created come first, and by id where times are equal.

    Attributes:
        workflow: only runs of this workflow.
        statuses: only runs with one of these; empty means any.
        updated_before: only runs whose newest record is older, in seconds since the epoch.
        resumable: only runs that are unfinished and that no live owner holds.
        offset: how many to pass over, for paging.
        limit: at most so many.
    """

    workflow: str | None = None
    statuses: frozenset[RunStatus] = frozenset()
    updated_before: float | None = None
    resumable: bool = False
    offset: int = 0
    limit: int = 100

    def matches(self, info: RunInfo, now: float) -> bool:
        """Whether a run is one of those that are looked for at `now`, seconds since the epoch."""
        return (
            (self.workflow is None or info.summary.workflow == self.workflow)
            and (not self.statuses or info.summary.status in self.statuses)
            and (self.updated_before is None or info.updated_at < self.updated_before)
            and (not self.resumable or info.is_resumable(now))
        )


class CheckpointStore(Protocol):
    """The storage environment of durable runs: journals of bytes behind leases.

    Every store is an async context manager, usable from asyncio and trio, and safe for many
    concurrent runs. A method that was cancelled may or may not have taken effect, unless it says more.
    """

    @property
    def durability(self) -> str:
        """What survives: "full" (power loss), "process" (kill -9) or "memory" (nothing)."""
        ...

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        """Take the lease of a run, existing or not, for so many seconds.

        A lease that has expired, or whose owner `Owner.is_dead`, is free. An owner that holds it
        already gets a new one.

        Fails with RunBusy when another live owner holds it.
        """
        ...

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Hold the lease for so many seconds from now.

        Fails with LeaseLost when somebody else has claimed the run since.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the run free. Does nothing when the lease is no longer ours."""
        ...

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        """Make records durable after record number `after`, all or none, in one transaction.

        Returns once they are as durable as `durability` says. `summary` replaces the run's summary
        (the first append of a run must bring one, and a record); `release` gives the lease free in the
        same transaction.

        Fails with LeaseLost, having written nothing, when the lease's fence is not the run's newest
        or the journal does not end at `after`; with SaveFailed when the records could not be written,
        whose `is_unknown` says whether they may have been all the same.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        """The records after number `after`, in order; empty when there are none or no such run.

        No snapshot is held when this returns: a slow caller never blocks a writer. The list is the
        caller's own, who may empty it.
        """
        ...

    async def info(self, run_id: str) -> RunInfo | None:
        """The line about one run, or None when the store has no record of it."""
        ...

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        """The runs that match, newest created first.

        Each is given once, also while others are added and removed. That does not hold from one page
        (`offset`) to the next.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Remove a run and all its records.

        Fails with RunNotFound, or with RunBusy while a live owner holds it.
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
    """A store that writes a run's newest checkpoint over again, and keeps copies of earlier ones."""

    def keep_history(self, run_id: str, copies: int) -> None:
        """Keep so many copies of this run from now on. Called before a run is driven."""
        ...


@runtime_checkable
class ListsDamagedRuns(Protocol):
    """A store in which one run may be damaged while the others are not.

    Its `find` passes over such a run, with a warning that names it; `info` and `read` fail for it.
    """

    async def damaged_runs(self) -> list[str]:
        """The ids of the runs that `find` passes over, as they cannot be read."""
        ...


@runtime_checkable
class FallsBack(Protocol):
    """A store that reads a run from an older copy, with a warning, where its newest one is damaged."""

    async def damage(self, run_id: str) -> str | None:
        """What is wrong with the newest copy of a run, and what is read instead; None if nothing is."""
        ...
