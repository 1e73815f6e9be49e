"""Which runs are due, and which of those may be claimed: the rules of all stores, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from effectflow.checkpoint.store import DueRuns, RunInfo, RunStatus, RunSummary, at_once, wakes


def due_by(now: float, summary: RunSummary) -> RunSummary:
    """Return the summary of a run, due at once if it was not due before. Nested runs are never due."""
    at = at_once(now)
    if summary.is_nested or (summary.due_at is not None and summary.due_at <= at):
        return summary
    return replace(summary, due_at=at)


def woken(topic: str, summary: RunSummary, *, now: float) -> RunSummary:
    """Return the summary of a run that has received a message."""
    return due_by(now, summary) if wakes(topic, summary.status) else summary


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

    def room(self, workflow: str, due: DueRuns, *, is_pending: bool) -> int:
        """Return how many runs of a workflow, pending or not, may be claimed."""
        most, limit = len(due.owners), due.limits.get(workflow)
        if limit is None:
            return most
        if limit.at_once is not None:
            most = min(most, limit.at_once - self.held.get(workflow, 0))
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


def in_order(info: RunInfo) -> tuple[int, float]:
    """Return the sort key of a due run: a higher priority first, then what has been due for longer."""
    assert info.summary.due_at is not None
    return -info.summary.priority, info.summary.due_at


def may_be_due(summary: RunSummary, due: DueRuns) -> bool:
    """Return whether a worker that drives these workflows can ever find the run due."""
    return (
        summary.due_at is not None and not summary.is_nested and summary.workflow in due.workflows
    )


def is_due(summary: RunSummary, due: DueRuns) -> bool:
    """Return whether the run is due."""
    return summary.due_at is not None and summary.due_at <= due.now
