"""Find and claim the runs of an SQL store that are due.

The index `runs_due` has the free runs of each lane by their due times, so the search costs the same
however many others are held or wait. It leaves out the runs of owners that died. The database cannot
check whether an owner is alive, so a claim looks at the leases in use: each time if they are few.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from effectflow.checkpoint.lease import Lease, deaths_seen_once
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import Claimed, DueRuns, Record, RunInfo, RunStatus, Taken
from effectflow.stores._due import Lane, Usage, choose_due, in_order, starts_from_json
from effectflow.stores._packed import records_in
from effectflow.stores._sql import (
    COLUMNS,
    Commit,
    Query,
    Row,
    Rows,
    Steps,
    lease_of,
    marks,
    readable_runs,
    take,
)

_FEW_LEASES = 10
"""With more leases in use, not every claim looks whether their owners have died."""

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_FOR_EACH_LEASE = 0.001
"""To look at a lease takes about a hundredth of that."""

_SECONDS_BETWEEN_WARNINGS = 60.0
"""How often to look whether a damaged run that is due still is."""


class ClaimMemory:
    """What a store remembers from one claim to the next.

    Attributes:
        damaged: the numbers of the due runs that cannot be read, which no claim takes.
    """

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        self._next_look_at = 0.0
        self._forgets_at = 0.0

    def looks_for_dead(self) -> bool:
        """Return whether to look now for due runs whose owners have died."""
        return time.monotonic() >= self._next_look_at

    def note_alive(self, leases: int) -> None:
        """Note that one has looked at this number of leases, and found no dead owner."""
        if leases > _FEW_LEASES:
            pause = max(_SECONDS_BETWEEN_LOOKS, leases * _SECONDS_FOR_EACH_LEASE)
            self._next_look_at = time.monotonic() + pause

    def forget(self) -> None:
        """Look at the damaged runs again from time to time, because they may have been repaired."""
        if time.monotonic() >= self._forgets_at:
            self._forgets_at = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
            self.damaged.clear()

    def readable(self, rows: Rows) -> list[tuple[Row, RunInfo]]:
        """Return the rows that can be read, with what they say. Warn of the others, and note them."""
        found = [*readable_runs(rows)]
        self.damaged.update({row[0] for row in rows} - {row[0] for row, _ in found})
        return found


def leases_in_use(workflows: Sequence[str]) -> Query:
    """Return the query for the arguments of `dead_leases`."""
    return Query(
        "SELECT number, workflow, run_id, owner, fence, expires_at, expires_at_uptime, now()"
        f" FROM @runs WHERE owner <> '' AND workflow IN ({marks(workflows)})",
        workflows,
    )


def dead_leases(rows: Rows) -> dict[int, Lease]:
    """Return the leases that have expired or whose owners are dead, by the numbers of their runs."""
    is_dead = deaths_seen_once()
    leases = ((number, lease_of(*lease), now) for number, _, *lease, now in rows)
    return {
        number: lease for number, lease, now in leases if lease and not lease.is_held(now, is_dead)
    }


def lanes(workflows: Sequence[str]) -> Query:
    """Return the beginning of a query: a table `lanes` of the lanes that have runs with a due time.

    Each costs one search of the index.
    """
    return Query(
        f"WITH RECURSIVE workflows (workflow) AS (VALUES {', '.join(['(?)'] * len(workflows))}),"
        f" statuses (status) AS (VALUES {_STATUSES}),"
        " every_lane (workflow, status, priority) AS ("
        f" SELECT workflow, status, (SELECT min(priority) FROM @runs WHERE {_IN_STATUS.format('a')})"
        " FROM (SELECT workflow, status FROM workflows CROSS JOIN statuses) AS a"
        " UNION ALL"
        f" SELECT workflow, status, (SELECT min(priority) FROM @runs WHERE {_IN_STATUS.format('b')}"
        " AND runs.priority > b.priority) FROM every_lane AS b WHERE priority IS NOT NULL),"
        " lanes AS (SELECT workflow, status, priority FROM every_lane WHERE priority IS NOT NULL)",
        workflows,
    )


_STATUSES = ", ".join(f"('{status}')" for status in RunStatus if not status.has_ended)
"""Runs with an unknown status are damaged, or a newer version wrote them."""

_IN_STATUS = (
    "runs.due_at IS NOT NULL AND runs.owner = '' AND runs.workflow = {0}.workflow"
    " AND runs.status = {0}.status"
)

IN_LANE = f"{_IN_STATUS.format('lanes')} AND runs.priority = lanes.priority"

NEXT_DUE_AT = (
    f"(SELECT min(runs.due_at) FROM @runs WHERE {IN_LANE} AND runs.due_at > ?"
    f" AND runs.due_at <= {LATEST})"
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The runs to claim, and what follows from that.

    Attributes:
        rows: their `COLUMNS`, with what they say.
        next_due_at: when the next of the others is due.
        starts: when runs of workflows with a limit were started, if these are claimed.
    """

    rows: Sequence[tuple[Row, RunInfo]] = ()
    next_due_at: float | None = None
    starts: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])


def next_due(due: DueRuns, memory: ClaimMemory) -> Steps[_Choice]:
    """Return what `claim_due` would choose. Lock and write nothing."""
    return _choose(due, memory, locks=False)


def claim_due(due: DueRuns, memory: ClaimMemory) -> Steps[Commit[Claimed]]:
    """Claim runs, as `ServiceStore.claim_due`."""
    limits = sorted(due.limits)
    if limits:
        # The claims that depend on the same limit wait for each other, in this order.
        note = "INSERT INTO @limits VALUES (?, '[]') ON CONFLICT DO NOTHING RETURNING 1"
        yield [
            *(Query(note, (workflow,)) for workflow in limits),
            Query(f"{_LIMITS.format(marks(limits))} ORDER BY workflow FOR UPDATE", limits),
        ]
    choice = yield from _choose(due, memory, locks=True)
    runs: list[Taken] = []
    changes: list[Query] = []
    numbers = [row[0] for row, _ in choice.rows]
    [found] = (yield [Query(_FIRST.format(marks(numbers)), numbers)]) if numbers else [()]
    bodies = {row[0]: row[1] for row in found}
    for (row, info), owner in zip(choice.rows, due.owners, strict=False):
        lease, change = take(row, owner, due.seconds)
        runs.append(Taken(lease, info, first_of(info, bodies.get(row[0]))))
        changes.append(change)
    for workflow, starts in choice.starts.items():
        note = "UPDATE @limits SET starts = ? WHERE workflow = ?"
        changes.append(Query(note, (json.dumps(starts), workflow)))
    return Commit(Claimed((*runs,), choice.next_due_at), changes)


HAS_ONLY_FIRST = (
    "run = runs.number AND sequence = 1 AND runs.length = 1 AND runs.newest_message = 0"
    f" AND length(body) <= {2**16}"
)
"""Chooses the only entry of a run without messages. A claim takes many runs, and leaves long entries."""

_FIRST = f"SELECT number, body FROM @runs JOIN @entries ON {HAS_ONLY_FIRST} WHERE number IN ({{}})"


def first_of(info: RunInfo, body: bytes | None) -> Record | None:
    """Return the only record of a run, given the body of its row."""
    return None if body is None else records_in([(1, info.updated_at, body)])[0]


_LIMITS = "SELECT workflow, starts FROM @limits WHERE workflow IN ({})"


def _choose(due: DueRuns, memory: ClaimMemory, *, locks: bool) -> Steps[_Choice]:
    workflows, limits = sorted(due.workflows), sorted(due.limits)
    if not workflows or not due.owners:
        return _Choice()
    counts_held = any(limit.limit is not None for limit in due.limits.values())
    looks_now = counts_held or memory.looks_for_dead()
    table, names = lanes(workflows)
    queries = [
        Query("SELECT now()"),
        Query(f"{table} SELECT lanes.*, {NEXT_DUE_AT} FROM lanes", (*names, due.now)),
    ]
    if limits:
        queries.append(Query(_LIMITS.format(marks(limits)), limits))
    if looks_now:
        queries.append(leases_in_use(sorted({*workflows, *limits})))
    [[(now,)], lane_rows, *others] = yield queries
    in_use: Rows = others[-1] if looks_now else ()
    starts = {name: starts_from_json(times) for name, times in others[0]} if limits else {}
    leases = ((workflow, lease_of(*lease)) for _, workflow, *lease, _ in in_use)
    held = ((workflow, lease) for workflow, lease in leases if lease is not None)
    usage = Usage.of(held, starts, due, now)
    dead = dead_leases(in_use)
    if looks_now and not dead:
        memory.note_alive(len(in_use))
    runs = yield from _free_runs(lane_rows, dead, due, usage, memory, locks=locks)
    infos = {info.run_id: (row, info) for row, info in runs}
    chosen = choose_due(sorted((info for _, info in infos.values()), key=in_order), due, usage)
    starts = {
        workflow: times
        for workflow, times in usage.after(chosen, due).starts.items()
        if times != starts.get(workflow, ())
    }
    later = [at for *_, at in lane_rows if at is not None]
    return _Choice([infos[info.run_id] for info in chosen], min(later, default=None), starts)


def _free_runs(
    lane_rows: Rows,
    dead: Mapping[int, Lease],
    due: DueRuns,
    usage: Usage,
    memory: ClaimMemory,
    *,
    locks: bool,
) -> Steps[list[tuple[Row, RunInfo]]]:
    """Return the due runs that can be claimed: at least as many of each lane as it has room for."""
    memory.forget()
    while True:
        spare = 2 * len(memory.damaged)
        found = yield _candidates(lane_rows, dead, due, usage, spare, locks=locks)
        free = {row[0]: row for some in found for row in some if _is_free(row, dead)}
        rows = [row for number, row in free.items() if number not in memory.damaged]
        runs = memory.readable(rows)
        if len(runs) == len(rows):
            return runs


def _candidates(
    lane_rows: Rows,
    dead: Mapping[int, Lease],
    due: DueRuns,
    usage: Usage,
    spare: int,
    *,
    locks: bool,
) -> list[Query]:
    """Return the queries for the first runs of each lane that has room, and for those of dead owners.

    `spare` is how many more of each lane to read, because some are damaged.
    """
    lock = " FOR UPDATE SKIP LOCKED" if locks else ""
    first = (
        f"SELECT {COLUMNS} FROM @runs WHERE workflow = ? AND status = ? AND priority = ?"
        f" AND owner = '' AND due_at <= ? ORDER BY due_at LIMIT ?{lock}"
    )
    queries = [
        Query(first, (*lane, due.now, room + spare))
        for *columns, _ in lane_rows
        if (room := (lane := Lane(*columns)).room(usage, due))
    ]
    if dead:
        of_dead = (
            f"SELECT {COLUMNS} FROM @runs WHERE number IN ({marks([*dead])}) AND due_at <= ?{lock}"
        )
        queries.append(Query(of_dead, (*dead, due.now)))
    return queries


def _is_free(row: Row, dead: Mapping[int, Lease]) -> bool:
    """Return whether a run is free, or still has the lease of a dead owner."""
    number, owner, fence = row[0], row[12], row[13]
    return not owner or (
        number in dead and (owner, fence) == (dead[number].owner, dead[number].fence)
    )
