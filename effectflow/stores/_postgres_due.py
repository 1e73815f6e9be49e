"""Find and claim the runs of a PostgresStore that are due.

The server finds them in an index that has the due runs first, however many others wait. It cannot check
whether the owner of a lease is alive, so the client names the leases of dead owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from effectflow.checkpoint.lease import Lease, deaths_seen_once, uptime
from effectflow.checkpoint.store import Claimed, DueRuns, RunInfo, RunStatus, Taken
from effectflow.stores._due import Usage, choose_due, in_order
from effectflow.stores._postgres_connection import Connection, Queries
from effectflow.stores._postgres_schema import ESCAPED_FIELDS, escaped, key_of, unescaped
from effectflow.stores._summaries import SUMMARY_FIELDS, readable, run_info

INFO = """
    SELECT runs.run_id, workflow, kind, version, status, created_at, dead_letters, due_at, priority,
           waits_for, blocked, parent, is_nested, newest.written_at, newest.sequence, leases.owner,
           leases.fence, leases.expires_at, leases.expires_at_uptime, {schema}.now()
    FROM {schema}.runs
    JOIN LATERAL (
        SELECT sequence, written_at FROM {schema}.entries WHERE run = number
        ORDER BY sequence DESC LIMIT 1
    ) AS newest ON true
    LEFT JOIN {schema}.leases ON leases.key = runs.key AND leases.owner <> ''
"""
"""Selects the arguments of `info_of`."""

_NOW = -1
"""The time of the server is the last column of `INFO`."""

_HELD = """
    SELECT workflow, owner, fence, expires_at, expires_at_uptime, at FROM {schema}.held(%s::text[])
"""

_STARTS = """
    SELECT workflow, starts, {schema}.now()
    FROM unnest(%s::text[]) AS wanted (workflow) LEFT JOIN {schema}.limits USING (workflow)
"""

_DUE = """
    SELECT due_run, at FROM {schema}.due(
        %s::text[], %s::bigint[], %s::bigint[], %s::double precision, %s::bigint[], %s::bool)
"""

_LOCK_LIMITS = (
    """
    INSERT INTO {schema}.limits SELECT workflow, '{}' FROM unnest(%s::text[]) AS new (workflow)
        ORDER BY workflow ON CONFLICT DO NOTHING RETURNING 1
    """,
    """
    SELECT 1 FROM {schema}.limits WHERE workflow = ANY(%s::text[]) ORDER BY workflow FOR UPDATE
    """,
)

_NOTE_STARTS = "UPDATE {schema}.limits SET starts = %s WHERE workflow = %s RETURNING 1"

_CLAIM_DUE = """
    SELECT next_at, run, new_fence, old_owner, old_fence, old_expires_at, old_expires_at_uptime
    FROM {schema}.claim_due(%s::text[], %s::text[], %s::double precision, %s::bigint[], %s::text[],
                            %s::double precision, %s::double precision)
"""

_TAKE = """
    UPDATE {schema}.leases SET owner = new.owner, fence = nextval('{schema}.fences'),
        expires_at = {schema}.now() + %s::double precision,
        expires_at_uptime = %s::double precision
    FROM unnest(%b::bytea[], %s::text[]) AS new (key, owner)
    WHERE leases.key = new.key
    RETURNING leases.key, leases.owner, leases.fence, leases.expires_at, leases.expires_at_uptime
"""


def info_of(row: Sequence[Any]) -> RunInfo:
    """Return one line about a run."""
    run_id, *columns = row[:_NOW]
    fields = dict(zip(SUMMARY_FIELDS, columns, strict=False))
    fields |= {name: unescaped(fields[name]) for name in ESCAPED_FIELDS}
    return run_info(unescaped(run_id), *fields.values(), *columns[len(SUMMARY_FIELDS) :])


class DueClaims:
    """One request to claim due runs, which may be attempted again after a lost connection."""

    def __init__(self, queries: Queries, due: DueRuns) -> None:
        self._rows = queries.rows
        self._due = due
        self._workflows = [escaped(name) for name in sorted(due.workflows)]
        # All claims lock in this order, so that they cannot deadlock.
        self._limited = [escaped(name) for name in sorted(due.limits)]
        self._may_have_claimed = False
        self._free_fences: list[int] = []
        """The fencing tokens of leases whose owners are dead."""

    async def attempt(self, connection: Connection) -> Claimed:
        """Claim the runs, unless an earlier attempt has."""
        if self._may_have_claimed and (taken := await self._taken_before(connection)):
            return Claimed(taken)
        usage = await self._usage(connection)
        if not self._limited:
            return await self._claim_without_limits(connection)
        # Idle workers ask all the time, so this looks before it locks.
        found, next_due_at = await self._find(connection, usage, lock=False)
        if not found:
            return Claimed((), next_due_at)
        self._may_have_claimed = True
        async with connection.transaction():
            for statement in _LOCK_LIMITS:
                await self._rows(connection, statement, (self._limited,))
            usage = await self._usage(connection)
            found, next_due_at = await self._find(connection, usage, lock=True)
            return Claimed(await self._claim(connection, found, usage), next_due_at)

    async def _usage(self, connection: Connection) -> Usage:
        held: Counter[str] = Counter()
        starts: dict[str, Sequence[float]] = {}
        self._free_fences = []
        now, is_dead = 0.0, deaths_seen_once()
        workflows = sorted({*self._workflows, *self._limited})
        for workflow, *lease, at in await self._rows(connection, _HELD, (workflows,)):
            now = at
            if Lease("", *lease).is_held(now, is_dead):
                held[unescaped(workflow)] += 1
            else:
                self._free_fences.append(lease[1])
        if self._limited:
            for workflow, times, at in await self._rows(connection, _STARTS, (self._limited,)):
                now = at
                starts[unescaped(workflow)] = times or ()
        return Usage(held, starts, now)

    async def _find(
        self, connection: Connection, usage: Usage, *, lock: bool
    ) -> tuple[list[int], float | None]:
        """Return the numbers of runs that are due and free, and when the next of the others are due."""
        rooms, rooms_for_pending = (
            [
                usage.room(unescaped(workflow), self._due, is_pending=is_pending)
                for workflow in self._workflows
            ]
            for is_pending in (False, True)
        )
        rows = await self._rows(
            connection,
            _DUE,
            (self._workflows, rooms, rooms_for_pending, self._due.now, self._free_fences, lock),
        )
        later = [at for number, at in rows if number is None and at is not None]
        return [number for number, _ in rows if number is not None], min(later, default=None)

    async def _claim(
        self, connection: Connection, found: list[int], usage: Usage
    ) -> tuple[Taken, ...]:
        due = self._due
        rows = await self._rows(connection, f"{INFO} WHERE runs.number = ANY(%s)", (found,))
        now = max((row[_NOW] for row in rows), default=usage.now)
        usage = replace(usage, now=now)
        chosen = choose_due(sorted(readable(rows, info_of), key=in_order), due, usage)
        for name, times in usage.after(chosen, due).starts.items():
            if times != usage.starts[name]:
                await self._rows(connection, _NOTE_STARTS, (times, escaped(name)))
        keys = {key_of(info.run_id): info for info in chosen}
        owners = due.owners[: len(keys)]
        rows = await self._rows(connection, _TAKE, (due.seconds, self._until, [*keys], [*owners]))
        leases = {bytes(key): lease for key, *lease in rows}
        return tuple(Taken(Lease(info.run_id, *leases[key]), info) for key, info in keys.items())

    async def _claim_without_limits(self, connection: Connection) -> Claimed:
        """Claim the runs in one statement, which locks nothing if there are none."""
        due, statuses = self._due, [*map(str, RunStatus)]
        self._may_have_claimed = True
        rows = await self._rows(
            connection,
            _CLAIM_DUE,
            (
                *(self._workflows, statuses, due.now, self._free_fences, [*due.owners]),
                *(due.seconds, self._until),
            ),
        )
        (next_due_at, *_), *claimed = rows
        if not claimed:
            return Claimed((), next_due_at)
        left = {fence: Lease("", *lease) for _, _, fence, *lease in claimed if lease[0]}
        numbers = [number for _, number, *_ in claimed]
        statement = f"{INFO} WHERE runs.number = ANY(%s::bigint[])"
        rows = await self._rows(connection, statement, (numbers,))
        return Claimed(_taken(rows, left), next_due_at)

    async def _taken_before(self, connection: Connection) -> tuple[Taken, ...]:
        """Return the runs that an attempt claimed whose answer was lost."""
        statement = f"{INFO} WHERE leases.owner = ANY(%s::text[])"
        return _taken(await self._rows(connection, statement, ([*self._due.owners],)), {})

    @property
    def _until(self) -> float | None:
        """When the new leases expire, in seconds since the boot of this host."""
        return None if (up := uptime()) is None else up + self._due.seconds


def _taken(rows: Iterable[Sequence[Any]], left: Mapping[int, Lease]) -> tuple[Taken, ...]:
    """Return the claimed runs. `left` has the leases that they had, by the new fencing tokens."""
    taken: list[Taken] = []
    for info in sorted(map(info_of, rows), key=in_order):
        assert info.lease is not None
        before = left.get(info.lease.fence)
        lease = None if before is None else replace(before, run_id=info.run_id)
        taken.append(Taken(info.lease, replace(info, lease=lease)))
    return (*taken,)
