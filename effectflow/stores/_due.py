"""Which runs are due, and which of those may be claimed: the rules of all stores, as pure functions.

A lane has the runs of one workflow with the same status and priority, sorted by their due times. The due
runs of a lane come first, so a search of an index of lanes reads only them, however many other runs wait
for a time or a message.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from effectflow.checkpoint.lease import Lease, deaths_seen_once
from effectflow.checkpoint.store import DueRuns, RunInfo, RunStatus, RunSummary


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of the limits of workflows is in use.

    Attributes:
        held: how many runs of each workflow with a limit are held by live owners.
        starts: when runs of each workflow with a limit were started last, in seconds since the epoch.
        now: the time by the clock of the store, in seconds since the epoch.
    """

    held: Mapping[str, int]
    starts: Mapping[str, Sequence[float]]
    now: float

    @staticmethod
    def of(
        leases: Iterable[tuple[str, Lease]],
        starts: Mapping[str, Sequence[float]],
        due: DueRuns,
        now: float,
    ) -> Usage:
        """Return the usage, given the workflows and leases of runs, which are read only if necessary."""
        held: Counter[str] = Counter()
        if any(limit.limit is not None for limit in due.limits.values()):
            is_dead = deaths_seen_once()
            held.update(
                workflow
                for workflow, lease in leases
                if workflow in due.limits and lease.is_held(now, is_dead)
            )
        return Usage(held, starts, now)

    def room(self, workflow: str, due: DueRuns, *, is_pending: bool) -> int:
        """Return how many runs of a workflow, pending or not, may be claimed."""
        most, limit = len(due.owners), due.limits.get(workflow)
        if limit is None:
            return most
        if limit.limit is not None:
            most = min(most, limit.limit - self.held.get(workflow, 0))
        if limit.per_second is not None and is_pending:
            count, window = limit.window
            times = self.starts.get(workflow, ())
            # Starts in the future are from before the clock was set back.
            most = min(most, count - sum(self.now - window < time <= self.now for time in times))
        return max(most, 0)

    def after(self, claimed: Iterable[RunInfo], due: DueRuns) -> Usage:
        """Return the usage after these runs were claimed."""
        held, starts = dict(self.held), dict(self.starts)
        for info in claimed:
            workflow = info.summary.workflow
            limit = due.limits.get(workflow)
            if limit is None:
                continue
            held[workflow] = held.get(workflow, 0) + 1
            if limit.per_second is not None and info.summary.status is RunStatus.PENDING:
                most, _ = limit.window
                starts[workflow] = [*starts.get(workflow, ()), self.now][-most:]
        return Usage(held, starts, self.now)


class Lane(NamedTuple):
    """The runs of a workflow with the same status and priority."""

    workflow: str
    status: str
    priority: int

    def room(self, usage: Usage, due: DueRuns) -> int:
        """Return how many of its runs may be claimed."""
        return usage.room(self.workflow, due, is_pending=self.status == RunStatus.PENDING)


class DueIndex(Protocol):
    """The runs with a due time that are not nested, in lanes."""

    def lanes(self, workflow: str) -> Iterator[Lane]:
        """Yield the lanes of a workflow."""
        ...

    def ready(self, lane: Lane, now: float) -> Generator[RunInfo]:
        """Yield the runs of a lane that are due at `now`, held or not, in order."""
        ...

    def next_due_at(self, lane: Lane, now: float) -> float | None:
        """Return when the next run of a lane is due after `now`; None if there is none."""
        ...


class Choice(NamedTuple):
    """The runs to claim, and when the next of the others is due."""

    runs: list[RunInfo]
    next_due_at: float | None


def choose(index: DueIndex, due: DueRuns, usage: Usage) -> Choice:
    """Choose the runs to claim. Read no more free runs of a lane than there is room for."""
    lanes = [lane for workflow in due.workflows for lane in index.lanes(workflow)]
    with ExitStack() as reading:
        candidates: list[Iterator[RunInfo]] = []
        for lane in lanes:
            if room := lane.room(usage, due):
                ready = reading.enter_context(closing(index.ready(lane, due.now)))
                free = (info for info in ready if not info.is_held(usage.now))
                candidates.append(islice(free, room))
        chosen = choose_due(heapq.merge(*candidates, key=in_order), due, usage)
    later = (index.next_due_at(lane, due.now) for lane in lanes)
    return Choice(chosen, min((at for at in later if at is not None), default=None))


def choose_due(candidates: Iterable[RunInfo], due: DueRuns, usage: Usage) -> list[RunInfo]:
    """Return the runs to claim, in the order of the candidates.

    `candidates` are runs that are due: those with a higher priority first, then those due for longer.
    """
    chosen: list[RunInfo] = []
    for info in candidates:
        if len(chosen) == len(due.owners):
            break
        is_pending = info.summary.status is RunStatus.PENDING
        if not info.is_held(usage.now) and usage.room(
            info.summary.workflow, due, is_pending=is_pending
        ):
            chosen.append(info)
            usage = usage.after([info], due)
    return chosen


def starts_from_json(text: str | bytes) -> list[float]:
    """Return when runs of a workflow were started last, as a store keeps it. Damage delays no run."""
    try:
        return [float(at) for at in json.loads(text)]
    except (TypeError, ValueError):
        return []


def in_order(info: RunInfo) -> tuple[int, float]:
    """Return the sort key of a due run: a higher priority first, then what has been due for longer."""
    assert info.summary.due_at is not None
    return -info.summary.priority, info.summary.due_at


def is_due(summary: RunSummary, due: DueRuns) -> bool:
    """Return whether the run is due."""
    return summary.due_at is not None and summary.due_at <= due.now
