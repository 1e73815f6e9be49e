"""Claim due runs of a PostgresStore that have neither limits nor turns, in one statement."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from effectflow.checkpoint.lease import Lease, uptime
from effectflow.checkpoint.run_info import RunInfo
from effectflow.checkpoint.store import Claimed, DueRuns, Taken
from effectflow.stores._due import in_order
from effectflow.stores._postgres_connection import Connection, Queries
from effectflow.stores._sql import COLUMNS, LARGEST, Row, Rows, readable_runs
from effectflow.stores._sql_due import (
    HAS_ONLY_FIRST,
    IN_LANE,
    LAST_TURN,
    NEXT_DUE_AT,
    ClaimMemory,
    dead_leases,
    first_of,
    lanes,
    leases_in_use,
)


class DueClaims:
    """One request to claim due runs, which may be attempted again after a lost connection."""

    def __init__(self, queries: Queries, due: DueRuns, memory: ClaimMemory) -> None:
        self._queries = queries
        self._due = due
        self._memory = memory
        self._workflows = sorted(due.workflows)
        self._may_have_claimed = False

    async def attempt(self, connection: Connection) -> Claimed:
        """Claim the runs, unless an earlier attempt has."""
        if self._may_have_claimed and (taken := await self._taken_before(connection)):
            return Claimed(taken)
        memory = self._memory
        memory.forget()
        dead = await self._dead_leases(connection) if memory.looks_for_dead() else {}
        taken, owners = list[Taken](), [*self._due.owners]
        while True:
            rows = await self._claim(connection, dead, owners)
            memory.has_turns = bool(rows[0][1])
            claimed = [row[2:-1] for row in rows if row[2] is not None]
            bodies = {row[2]: row[-1] for row in rows}
            readable = memory.readable(claimed)
            taken += _taken(readable, dead, bodies)
            if len(readable) == len(claimed):
                taken.sort(key=lambda run: in_order(run.info))
                return Claimed((*taken,), rows[0][0])
            damaged = {row[0] for row in claimed} - {row[0] for row, _ in readable}
            await self._queries.rows(connection, _RELEASE, ([*damaged], owners))
            used = {run.lease.owner for run in taken}
            owners = [owner for owner in self._due.owners if owner not in used]

    async def _claim(
        self, connection: Connection, dead: Mapping[int, Lease], owners: Sequence[str]
    ) -> Rows:
        """Return the rows of the claimed runs, after when the next of the others is due."""
        due, up = self._due, uptime()
        table, names = lanes(self._workflows)
        self._may_have_claimed = True
        damaged, fences = [*self._memory.damaged], [lease.fence for lease in dead.values()]
        return await self._queries.rows(
            connection,
            table + _CLAIM,
            (
                *(*names, due.now, damaged, len(owners), [*dead], fences, due.now, damaged),
                *(len(owners), owners, due.seconds, None if up is None else up + due.seconds),
                due.now,
            ),
        )

    async def _dead_leases(self, connection: Connection) -> dict[int, Lease]:
        rows = await self._queries.rows(connection, *leases_in_use(self._workflows))
        dead = dead_leases(rows)
        if not dead:
            self._memory.note_alive(len(rows))
        return dead

    async def _taken_before(self, connection: Connection) -> tuple[Taken, ...]:
        """Return the runs that an attempt claimed whose answer was lost."""
        statement = f"SELECT {COLUMNS} FROM @runs WHERE owner <> '' AND owner = ANY(?::text[])"
        rows = await self._queries.rows(connection, statement, ([*self._due.owners],))
        return tuple(_taken(readable_runs(rows), {}, {}))


def _taken(
    claimed: Iterable[tuple[Row, RunInfo]],
    dead: Mapping[int, Lease],
    bodies: Mapping[int, bytes | None],
) -> Generator[Taken]:
    """Yield the claimed runs.

    `dead` has the leases that some had before, and `bodies` the only entries of some, by number.
    """
    for row, info in claimed:
        assert info.lease is not None
        before = replace(info, lease=dead.get(row[0]))
        yield Taken(info.lease, before, first_of(info, bodies.get(row[0])))


_CLAIM = f""",
    free AS MATERIALIZED (
        SELECT found.* FROM lanes CROSS JOIN LATERAL (
            SELECT runs.number, runs.priority, runs.due_at FROM @runs
            WHERE {IN_LANE} AND runs.due_at <= ? AND runs.number <> ALL(?::bigint[])
            ORDER BY runs.due_at LIMIT ? FOR UPDATE SKIP LOCKED
        ) AS found
    ), left_by_dead AS MATERIALIZED (
        SELECT runs.number, runs.priority, runs.due_at
        FROM unnest(?::bigint[], ?::bigint[]) AS dead (number, fence) JOIN @runs USING (number, fence)
        WHERE runs.owner <> '' AND runs.due_at <= ? AND runs.number <> ALL(?::bigint[])
        FOR UPDATE OF runs SKIP LOCKED
    ), chosen AS (
        SELECT number, row_number() OVER (ORDER BY priority DESC, due_at) AS place
        FROM (SELECT * FROM free UNION ALL SELECT * FROM left_by_dead) AS every
        ORDER BY place LIMIT ?
    ), taken AS (
        UPDATE @runs SET owner = (?::text[])[place],
            fence = greatest(least(fence, {LARGEST - 1}) + 1, (now() * 1e6)::bigint),
            expires_at = now() + ?::float8, expires_at_uptime = ?::float8
        FROM chosen WHERE runs.number = chosen.number
        RETURNING runs.*
    )
    SELECT next.at, next.turn, {COLUMNS}, (SELECT body FROM @entries WHERE {HAS_ONLY_FIRST})
    FROM (SELECT min({NEXT_DUE_AT}) AS at, max({LAST_TURN}) AS turn FROM lanes) AS next
    LEFT JOIN taken AS runs ON true
"""
"""Continues the query of `lanes`. Locks and writes nothing if there is nothing to claim. Returns the new
lease of each run, and in each row when the next of the others is due, and the last turn of any."""

_RELEASE = "UPDATE @runs SET owner = '' WHERE number = ANY(?::bigint[]) AND owner = ANY(?::text[])"
"""Releases damaged runs, so that a repair can claim them."""
