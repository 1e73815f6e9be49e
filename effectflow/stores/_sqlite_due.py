"""Find the runs of an SQLite database, and those of them that are due."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import DueRuns, RunInfo, RunStatus
from effectflow.stores._due import Choice, DueIndex, Lane, Usage, choose
from effectflow.stores._summaries import SUMMARY_FIELDS, readable, run_info

INFO = f"""
    SELECT runs.run_id, {", ".join(SUMMARY_FIELDS)}, newest.written_at, newest.sequence,
           leases.owner, leases.fence, leases.expires_at, leases.expires_at_uptime
    FROM runs
    JOIN entries AS newest ON newest.run = runs.number AND newest.sequence =
         (SELECT max(sequence) FROM entries WHERE entries.run = runs.number)
    LEFT JOIN leases ON leases.run_id = runs.run_id
"""
"""Selects the arguments of `run_info`."""

_IN_LANE = """
    due_at IS NOT NULL AND NOT is_nested AND workflow = ? AND status = ? AND priority = ?
"""


def choose_runs(database: sqlite3.Connection, due: DueRuns, now: float) -> Choice:
    """Choose the runs to claim at `now`, by the clock of the store. Write nothing."""
    return choose(_DueIndex(database), due, _usage(database, due, now))


def note_starts(
    database: sqlite3.Connection, chosen: Sequence[RunInfo], due: DueRuns, now: float
) -> None:
    """Note which runs are started at `now`, if a limit depends on it."""
    for info in chosen:
        summary = info.summary
        limit = due.limits.get(summary.workflow)
        if limit is None or limit.per_second is None or summary.status is not RunStatus.PENDING:
            continue
        database.execute("INSERT INTO starts (workflow, at) VALUES (?, ?)", (summary.workflow, now))
        database.execute(
            "DELETE FROM starts WHERE workflow = ? AND number <="
            " (SELECT number FROM starts WHERE workflow = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (summary.workflow, summary.workflow, limit.window[0]),
        )


def _usage(database: sqlite3.Connection, due: DueRuns, now: float) -> Usage:
    starts: dict[str, list[float]] = {}
    for workflow, limit in due.limits.items():
        if limit.per_second is not None:
            rows = database.execute("SELECT at FROM starts WHERE workflow = ?", (workflow,))
            starts[workflow] = [at for (at,) in rows]
    return Usage.of(_held(database), starts, due, now)


def _held(database: sqlite3.Connection) -> Iterator[tuple[str, Lease]]:
    """Yield the workflow and the lease of each run that was not released."""
    leases = database.execute(
        "SELECT workflow, leases.run_id, owner, fence, expires_at, expires_at_uptime"
        " FROM leases CROSS JOIN runs ON runs.run_id = leases.run_id"
    )
    for workflow, *lease in leases:
        yield workflow, Lease(*lease)


@dataclass(frozen=True, slots=True)
class _DueIndex(DueIndex):
    """The index `runs_due` of a database."""

    database: sqlite3.Connection

    def lanes(self, workflow: str) -> Iterator[Lane]:
        lane = Lane(workflow, "", 0)
        while True:
            # Each lane costs one search of the index.
            found: tuple[str, int] | None = (
                self.database.execute(_NEXT_PRIORITY, lane).fetchone()
                or self.database.execute(_NEXT_STATUS, lane[:2]).fetchone()
            )
            if found is None:
                return
            lane = Lane(workflow, *found)
            # Rows with another status are damaged, or a newer version wrote them. `damaged_runs` lists
            # them.
            if lane.status in _STATUSES:
                yield lane

    def ready(self, lane: Lane, now: float) -> Generator[RunInfo]:
        statement = f"{INFO} WHERE {_IN_LANE} AND due_at <= ? ORDER BY due_at"
        with closing(self.database.execute(statement, (*lane, now))) as cursor:
            yield from readable(cursor, lambda row: run_info(*row))

    def next_due_at(self, lane: Lane, now: float) -> float | None:
        statement = f"SELECT min(due_at) FROM runs WHERE {_IN_LANE} AND due_at > ?"
        [at] = self.database.execute(statement, (*lane, now)).fetchone()
        return at


_NEXT_PRIORITY = """
SELECT status, priority FROM runs WHERE due_at IS NOT NULL AND NOT is_nested
AND workflow = ? AND status = ? AND priority > ? ORDER BY priority LIMIT 1
"""
"""Find the lane that follows another one with the same status. `(status, priority) > (?, ?)` instead of
this and the next statement would make SQLite read all runs of the other lane."""

_NEXT_STATUS = """
SELECT status, priority FROM runs WHERE due_at IS NOT NULL AND NOT is_nested
AND workflow = ? AND status > ? ORDER BY status, priority LIMIT 1
"""

_STATUSES = frozenset(map(str, RunStatus))
