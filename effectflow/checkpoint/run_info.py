"""What a store tells about a run, and which runs to find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint, process_of
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.schema import LATEST, frozen, schema_of
from effectflow.effects.arguments import check_count, check_type


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
