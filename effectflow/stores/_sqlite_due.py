"""Find and claim the runs of an SQLite database that are due.

An index has the runs with a due time, in lanes: a lane has the runs of one workflow with the same status
and priority. The due runs of a lane come first, so a search reads only them, however many runs wait for a
time or a message.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import NamedTuple

from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import DueRuns, RunInfo, RunStatus
from effectflow.stores._base import readable, run_info
from effectflow.stores._due import Usage, choose_due, in_order

INFO = """
    SELECT runs.run_id, workflow, kind, version, status, created_at, dead_letters, due_at, priority,
           waits_for, blocked, parent, is_nested, newest.written_at, newest.sequence, leases.owner,
           leases.fence, leases.expires_at, leases.expires_at_uptime
    FROM runs
    JOIN entries AS newest ON newest.run = runs.number AND newest.sequence =
         (SELECT max(sequence) FROM entries WHERE entries.run = runs.number)
    LEFT JOIN leases ON leases.run_id = runs.run_id
"""
"""Selects the arguments of `run_info`."""

_IN_LANE = """
    due_at IS NOT NULL AND NOT is_nested AND workflow = ? AND status = ? AND priority = ?
"""


class Choice(NamedTuple):
    """The runs to claim, and when the next of the others is due."""

    runs: list[RunInfo]
    next_due_at: float | None


class _Lane(NamedTuple):
    workflow: str
    status: str
    priority: int


def choose(database: sqlite3.Connection, due: DueRuns, now: float) -> Choice:
    """Choose the runs to claim at `now`, by the clock of the store. Write nothing."""
    usage = _usage(database, due, now)
    lanes = [lane for workflow in due.workflows for lane in _lanes(database, workflow)]
    with ExitStack() as cursors:
        candidates = [
            _free(cursors, database, lane, due, now, most)
            for lane in lanes
            if (most := usage.room(lane.workflow, due, is_pending=lane.status == RunStatus.PENDING))
        ]
        chosen = choose_due(heapq.merge(*candidates, key=in_order), due, usage)
    later = [at for lane in lanes if (at := _next_due_at(database, lane, due.now)) is not None]
    return Choice(chosen, min(later, default=None))


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
    held: Counter[str] = Counter()
    starts: dict[str, list[float]] = {}
    if any(limit.at_once is not None for limit in due.limits.values()):
        leases = database.execute(
            "SELECT workflow, leases.run_id, owner, fence, expires_at, expires_at_uptime"
            " FROM leases CROSS JOIN runs ON runs.run_id = leases.run_id"
        )
        for workflow, *lease in leases:
            if workflow in due.limits and Lease(*lease).is_held(now):
                held[workflow] += 1
    for workflow, limit in due.limits.items():
        if limit.per_second is not None:
            rows = database.execute("SELECT at FROM starts WHERE workflow = ?", (workflow,))
            starts[workflow] = [at for (at,) in rows]
    return Usage(held, starts, now)


def _lanes(database: sqlite3.Connection, workflow: str) -> Iterator[_Lane]:
    """Yield the lanes of a workflow. Each one costs one search of the index."""
    lane = _Lane(workflow, "", 0)
    while True:
        found: tuple[str, int] | None = (
            database.execute(_NEXT_PRIORITY, lane).fetchone()
            or database.execute(_NEXT_STATUS, lane[:2]).fetchone()
        )
        if found is None:
            return
        lane = _Lane(workflow, *found)
        # Rows with another status are damaged, or a newer version wrote them. `damaged_runs` lists them.
        if lane.status in _STATUSES:
            yield lane


def _free(
    cursors: ExitStack,
    database: sqlite3.Connection,
    lane: _Lane,
    due: DueRuns,
    now: float,
    most: int,
) -> Iterator[RunInfo]:
    """Return an iterator over runs of a lane that are due and not held, in order, at most this many."""
    cursor = cursors.enter_context(
        closing(
            database.execute(
                f"{INFO} WHERE {_IN_LANE} AND due_at <= ? ORDER BY due_at", (*lane, due.now)
            )
        )
    )
    infos = readable(cursor, lambda row: run_info(*row))
    return islice((info for info in infos if not info.is_held(now)), most)


def _next_due_at(database: sqlite3.Connection, lane: _Lane, now: float) -> float | None:
    [at] = database.execute(
        f"SELECT min(due_at) FROM runs WHERE {_IN_LANE} AND due_at > ?", (*lane, now)
    ).fetchone()
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
