"""Find and claim the runs of an SQL store that are due.

The index `runs_due` has the free runs of each lane by their due times, so the search costs the same
however many others are held or wait. It leaves out the runs of owners that died. The database cannot
check whether an owner is alive, so a claim looks at the leases in use: each time if they are few.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from effectflow.checkpoint.lease import Lease, deaths_seen_once
from effectflow.checkpoint.run_info import RunInfo, RunStatus
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import Claimed, DueRuns, Record, Taken
from effectflow.stores._due import (
    Lane,
    Place,
    Served,
    Usage,
    choose_due,
    counts_held,
    in_order,
    starts_from_json,
    turn_lanes,
)
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
        served: the key that was served last in each place.
        has_turns: whether runs waited for their turn when a claim looked last.
        has_claimed: whether the last claim took runs, so that the next one probably does.
    """

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        self.served: Served = {}
        self.has_turns = True
        self.has_claimed = False
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


def leases_in_use(workflows: Sequence[str], queues: Sequence[str] = ()) -> Query:
    """Return the query for the arguments of `dead_leases`, with the queues and keys of the runs."""
    names = [*workflows, *queues]
    of_queues = f" OR queue IN ({marks(queues)})" if queues else ""
    return Query(
        "SELECT number, workflow, queue, queue_key, run_id, owner, fence, expires_at,"
        " expires_at_uptime, now() FROM @runs"
        f" WHERE owner <> '' AND (workflow IN ({marks(names)}){of_queues})",
        (*names, *queues),
    )


def dead_leases(rows: Rows) -> dict[int, Lease]:
    """Return the leases that have expired or whose owners are dead, by the numbers of their runs."""
    is_dead = deaths_seen_once()
    leases = ((number, lease_of(*lease), now) for number, _, _, _, *lease, now in rows)
    return {
        number: lease for number, lease, now in leases if lease and not lease.is_held(now, is_dead)
    }


def lanes(workflows: Sequence[str]) -> Query:
    """Return the beginning of a query: a table `lanes` of the lanes without a turn.

    Each costs one search of the index.
    """
    return Query(
        f"WITH RECURSIVE workflows (workflow) AS (VALUES {', '.join(['(?)'] * len(workflows))}),"
        f" statuses (status) AS (VALUES {_STATUSES}),"
        " lanes (workflow, status, priority, queue) AS ("
        " SELECT first.workflow, first.status, first.priority, first.queue"
        " FROM workflows CROSS JOIN statuses JOIN @runs AS first ON first.number = ("
        "SELECT runs.number FROM @runs AS runs WHERE runs.workflow = workflows.workflow"
        f" AND runs.status = statuses.status AND {_IS_FREE}"
        " ORDER BY runs.queue, runs.priority LIMIT 1)"
        " UNION ALL"
        " SELECT next.workflow, next.status, next.priority, next.queue"
        # With `=`, PostgreSQL would hash the whole table.
        f" FROM lanes JOIN @runs AS next ON next.number BETWEEN {_NEXT_LANE} AND {_NEXT_LANE})",
        workflows,
    )


_STATUSES = ", ".join(f"('{status}')" for status in RunStatus if not status.has_ended)
"""Runs with an unknown status are damaged, or a newer version wrote them."""

_IS_FREE = "runs.due_at IS NOT NULL AND runs.owner = ''"
_NEXT = (
    "SELECT runs.number FROM @runs AS runs WHERE runs.workflow = lanes.workflow"
    f" AND runs.status = lanes.status AND {_IS_FREE}"
)
_NEXT_LANE = (
    f"coalesce(({_NEXT} AND runs.queue = lanes.queue AND runs.priority > lanes.priority"
    f" ORDER BY runs.priority LIMIT 1), ({_NEXT} AND runs.queue > lanes.queue"
    " ORDER BY runs.queue, runs.priority LIMIT 1))"
)
"""The number of the first run of the lane that follows."""

_IN_PLACE = (
    f"{_IS_FREE} AND runs.workflow = lanes.workflow AND runs.status = lanes.status"
    " AND runs.queue = lanes.queue AND runs.priority = lanes.priority"
)

IN_LANE = f"{_IN_PLACE} AND runs.turn = ''"

NEXT_DUE_AT = (
    f"(SELECT min(runs.due_at) FROM @runs AS runs WHERE {IN_LANE} AND runs.due_at > ?"
    f" AND runs.due_at <= {LATEST})"
)

LAST_TURN = (
    f"CASE WHEN lanes.status = '{RunStatus.PENDING}'"
    f" THEN (SELECT max(runs.turn) FROM @runs AS runs WHERE {_IN_PLACE}) END"
)


def _next_turns(lane: Lane, after: str, most: int) -> Query:
    """Return the query for the turns of a lane that follow this one, each by one search."""
    here = f"{_IN_LANE} AND turn >"
    return Query(
        "WITH RECURSIVE turns (turn, place) AS ("
        f" SELECT (SELECT min(turn) FROM @runs WHERE {here} ?), 1"
        " UNION ALL"
        f" SELECT (SELECT min(turn) FROM @runs WHERE {here} turns.turn), place + 1 FROM turns"
        " WHERE turn IS NOT NULL AND place < ?)"
        " SELECT turn FROM turns WHERE turn IS NOT NULL",
        (*lane[:-1], after, *lane[:-1], most),
    )


_IN_LANE = (
    "workflow = ? AND status = ? AND priority = ? AND queue = ?"
    " AND due_at IS NOT NULL AND owner = ''"
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The runs to claim, and what follows from that.

    Attributes:
        rows: their `COLUMNS`, with what they say.
        next_due_at: when the next of the others is due.
        starts: when runs of queues with limits were started, if these are claimed.
        served: the key that was served last in each place, if these are claimed.
    """

    rows: Sequence[tuple[Row, RunInfo]] = ()
    next_due_at: float | None = None
    starts: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    served: Served = field(default_factory=dict[Place, str])


def next_due(due: DueRuns, memory: ClaimMemory) -> Steps[_Choice]:
    """Return what `claim_due` would choose. Lock and write nothing."""
    return _choose(due, memory, locks=False)


def claim_due(due: DueRuns, memory: ClaimMemory) -> Steps[Commit[Claimed]]:
    """Claim runs, as `ServiceStore.claim_due`."""
    queues = sorted(due.queues)
    if queues:
        # The claims that depend on the same limit wait for each other, in this order.
        note = "INSERT INTO @limits VALUES (?, '[]') ON CONFLICT DO NOTHING RETURNING 1"
        yield [
            *(Query(note, (queue,)) for queue in queues),
            Query(f"{_LIMITS.format(marks(queues))} ORDER BY queue FOR UPDATE", queues),
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
    for queue, starts in choice.starts.items():
        note = "UPDATE @limits SET starts = ? WHERE queue = ?"
        changes.append(Query(note, (json.dumps(starts), queue)))
    memory.served.update(choice.served)
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


_LIMITS = "SELECT queue, starts FROM @limits WHERE queue IN ({})"


def _choose(due: DueRuns, memory: ClaimMemory, *, locks: bool) -> Steps[_Choice]:
    workflows, queues = sorted(due.workflows), sorted(due.queues)
    if not workflows or not due.owners:
        return _Choice()
    looks_now = counts_held(due) or memory.looks_for_dead()
    table, names = lanes(workflows)
    queries = [
        Query("SELECT now()"),
        Query(f"{table} SELECT lanes.*, {NEXT_DUE_AT}, {LAST_TURN} FROM lanes", (*names, due.now)),
    ]
    if queues:
        queries.append(Query(_LIMITS.format(marks(queues)), queues))
    if looks_now:
        queries.append(leases_in_use(workflows, queues))
    [[(now,)], lane_rows, *others] = yield queries
    memory.has_turns = any(last for *_, last in lane_rows)
    in_use: Rows = others[-1] if looks_now else ()
    starts = {name: starts_from_json(times) for name, times in others[0]} if queues else {}
    leases = ((queue or of, key, lease_of(*lease)) for _, of, queue, key, *lease, _ in in_use)
    held = ((queue, key, lease) for queue, key, lease in leases if lease is not None)
    usage = Usage.of(held, starts, due, now)
    # The others are those of workflows that the claimant cannot drive, in queues that it knows.
    dead = dead_leases([row for row in in_use if row[1] in due.workflows])
    if looks_now and not dead:
        memory.note_alive(len(in_use))
    wanted = yield from _lanes_to_read(lane_rows, due, usage, memory)
    runs = yield from _free_runs(wanted, dead, due, usage, memory, locks=locks)
    infos = {info.run_id: (row, info) for row, info in runs}
    candidates: defaultdict[Lane, list[RunInfo]] = defaultdict(list)
    for info in sorted((info for _, info in infos.values()), key=in_order):
        candidates[Lane.of(info.summary)].append(info)
    served = dict(memory.served)
    chosen = choose_due(candidates.items(), due, usage, served)
    starts = {
        queue: times
        for queue, times in usage.after(chosen, due).starts.items()
        if times != starts.get(queue, ())
    }
    later = [at for *_, at, _ in lane_rows if at is not None]
    rows = [infos[info.run_id] for info in chosen]
    return _Choice(rows, min(later, default=None), starts, served)


def _lanes_to_read(
    lane_rows: Rows, due: DueRuns, usage: Usage, memory: ClaimMemory
) -> Steps[list[tuple[Lane, int]]]:
    """Return the lanes to read, and how many runs of each at most."""
    found: list[tuple[Lane, int]] = []
    for *columns, _, last_turn in lane_rows:
        lane = Lane(*columns)
        if not (room := lane.room(usage, due)):
            continue
        found.append((lane, room))
        if last_turn:
            full = usage.full_keys(lane.queue_name, due)
            last, most = memory.served.get(lane.place(due), ""), room + len(full)
            [rows, first] = yield [_next_turns(lane, after, most) for after in (last, "")]
            turns = [turn for (turn,) in (*rows, *(row for row in first if row[0] <= last))]
            with_room = [turn for turn in turns if turn not in full][:room]
            found += turn_lanes(lane, with_room, usage, due)
    return found


def _free_runs(
    wanted: Sequence[tuple[Lane, int]],
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
        found = yield _candidates(wanted, dead, due, usage, spare, locks=locks)
        free = {row[0]: row for some in found for row in some if _is_free(row, dead)}
        rows = [row for number, row in free.items() if number not in memory.damaged]
        runs = memory.readable(rows)
        if len(runs) == len(rows):
            return runs


def _candidates(
    wanted: Sequence[tuple[Lane, int]],
    dead: Mapping[int, Lease],
    due: DueRuns,
    usage: Usage,
    spare: int,
    *,
    locks: bool,
) -> list[Query]:
    """Return the queries for the first runs of each lane, and for those of dead owners.

    `spare` is how many more of each lane to read, because some are damaged.
    """
    lock = " FOR UPDATE SKIP LOCKED" if locks else ""
    queries: list[Query] = []
    for lane, most in wanted:
        full = [] if lane.turn else usage.full_keys(lane.queue_name, due)
        others = f" AND queue_key NOT IN ({marks(full)})" if full else ""
        first = (
            f"SELECT {COLUMNS} FROM @runs WHERE {_IN_LANE} AND turn = ?{others}"
            f" AND due_at <= ? ORDER BY due_at LIMIT ?{lock}"
        )
        queries.append(Query(first, (*lane, *full, due.now, most + spare)))
    if dead:
        of_dead = (
            f"SELECT {COLUMNS} FROM @runs WHERE number IN ({marks([*dead])}) AND due_at <= ?{lock}"
        )
        queries.append(Query(of_dead, (*dead, due.now)))
    return queries


def _is_free(row: Row, dead: Mapping[int, Lease]) -> bool:
    """Return whether a run is free, or still has the lease of a dead owner."""
    number, owner, fence = row[0], row[14], row[15]
    return not owner or (
        number in dead and (owner, fence) == (dead[number].owner, dead[number].fence)
    )
