"""Runs in a PostgreSQL database, for many processes on many hosts."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunNotFound,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    CheckpointStore,
    Record,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
)
from effectflow.effects.event_loop import shielded
from effectflow.stores.asyncio_bridge import AsyncioBridge
from effectflow.stores.holder import Holder, past_a_dead_holder
from effectflow.stores.patience import Patience
from effectflow.stores.postgres_connection import Connecting, Connection, Pool, Queries
from effectflow.stores.postgres_schema import escaped, key_of, migrate, unescaped
from effectflow.stores.postgres_writer import Append, PostgresWriter

__all__ = ["PostgresStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_PAGE = 200


class PostgresStore(CheckpointStore):
    """Keeps runs in PostgreSQL. Needs the extra `effectflow[postgres]` (psycopg 3).

    A durable append is one round trip. Appends that are asked for while another is under way go
    together in the next one, so many runs share the price of a commit. An append whose connection is
    lost is sent again, and never written twice. Time is that of the server, so hosts whose clocks
    differ agree on leases.

    Parameters:
        dsn: a connection string, such as `postgresql://user@host/database`. It is never logged.
        schema: the schema that its tables are kept in; made, and brought up to date, when it is opened.
        pool_size: connections at most, besides the one that writes.
        statement_timeout: seconds after which the server gives a statement up.
        patience: seconds that a lost server is looked for again.

    Raises ValueError for a connection string that cannot be read. Opening fails with StoreUnavailable,
    or with UnsupportedVersion if a newer effectflow has been there.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "effectflow",
        pool_size: int = 4,
        statement_timeout: float = 30.0,
        patience: float = 15.0,
    ) -> None:
        self._connecting = Connecting(dsn, statement_timeout=statement_timeout)
        self._schema = schema
        self._pool_size = pool_size
        self._queries = Queries(schema)
        self._rows = self._queries.rows
        self._patience = Patience(self, seconds=patience, is_lost=_is_lost)
        self._bridge = AsyncioBridge()
        self._pool: Pool | None = None
        self._writer: PostgresWriter | None = None

    def __repr__(self) -> str:
        return f"PostgresStore(schema={self._schema!r})"

    @property
    def durability(self) -> str:
        return "full"

    async def __aenter__(self) -> Self:
        await self._bridge.open()
        try:
            await self._bridge.call(self._open)
        except BaseException:
            await shielded(self._leave())
            raise
        return self

    async def _open(self) -> None:
        pool = self._connecting.pool(self._pool_size + 1, patience=self._patience.seconds)
        try:
            # First without the pool, which tells nobody why it cannot connect.
            async with await self._connecting.connect() as connection:
                await migrate(connection, self._schema)
            await pool.open(wait=True)
        except psycopg.Error as error:
            await pool.close()
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error
        except BaseException:
            await shielded(pool.close())
            raise
        self._pool = pool
        self._writer = PostgresWriter(pool, self._queries, self._patience)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await shielded(self._leave())

    async def _leave(self) -> None:
        try:
            await self._bridge.call(self._close)
        finally:
            await self._bridge.close()

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
        if pool is not None:
            await pool.close()

    # The contract of a store.

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        async def ask(connection: Connection, dead: int) -> Lease | Holder:
            [row] = await self._rows(
                connection,
                "SELECT owner, fence, expires_at, {schema}.now() FROM {schema}.claim(%s, %s, %s, %s)",
                (key_of(run_id), owner, seconds, dead),
            )
            holder, fence, expires_at, now = row
            if holder == owner:
                return Lease(run_id, owner, fence, expires_at)
            return Holder(holder, fence, expires_at - now)

        async def claim(connection: Connection) -> Lease:
            return await past_a_dead_holder(run_id, lambda dead: ask(connection, dead))

        return await self._do(claim)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        async def renew(connection: Connection) -> Lease:
            rows = await self._rows(
                connection,
                "UPDATE {schema}.leases SET expires_at = {schema}.now() + %s"
                " WHERE key = %s AND fence = %s AND owner <> '' RETURNING expires_at",
                (seconds, key_of(lease.run_id), lease.fence),
            )
            if not rows:
                raise LeaseLost(lease.run_id, "somebody else has claimed it")
            return Lease(lease.run_id, lease.owner, lease.fence, rows[0][0])

        return await self._do(renew)

    async def release(self, lease: Lease) -> None:
        async def release(connection: Connection) -> None:
            await self._rows(
                connection,
                "UPDATE {schema}.leases SET owner = '' WHERE key = %s AND fence = %s RETURNING 1",
                (key_of(lease.run_id), lease.fence),
            )

        await self._do(release)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        writer = self._writer
        if writer is None:
            raise self._not_open()

        async def submit() -> None:
            await writer.submit(
                Append(lease, [bytes(body) for body in bodies], after, summary, release)
            )

        await self._bridge.call(submit)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        async def read(connection: Connection) -> list[Record]:
            rows = await self._rows(
                connection,
                "SELECT sequence, written_at, body FROM {schema}.entries JOIN {schema}.runs"
                " ON run = number WHERE key = %s AND sequence > %s ORDER BY sequence",
                (key_of(run_id), after),
            )
            return [Record(sequence, at, bytes(body)) for sequence, at, body in rows]

        return await self._do(read)

    async def info(self, run_id: str) -> RunInfo | None:
        async def info(connection: Connection) -> RunInfo | None:
            rows = await self._rows(connection, f"{_INFO} WHERE runs.key = %s", (key_of(run_id),))
            return _info(rows[0]) if rows else None

        return await self._do(info)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        async def find(connection: Connection) -> list[RunInfo]:
            conditions, parameters = _conditions(query)
            statement = f"{_INFO} WHERE {conditions} AND {_BEHIND} LIMIT %s"
            wanted = query.offset + query.limit
            found: list[RunInfo] = []
            created_at, run_id = math.inf, ""
            while len(found) < wanted:
                # From the last one on, and not by number, as runs come and go in between.
                behind = (created_at, created_at, run_id)
                rows = await self._rows(connection, statement, (*parameters, *behind, _PAGE))
                # Whether an owner lives is not for SQL to say, so paging is done on what is left.
                for row in rows:
                    try:
                        info = _info(row)
                    except CorruptCheckpoint as error:
                        logger.warning("run %r is passed over: %s", error.run_id, error)
                        continue
                    if query.matches(info, row[_NOW_COLUMN]):
                        found.append(info)
                if len(rows) < _PAGE:
                    break
                created_at, run_id = rows[-1][_CREATED_AT_COLUMN], rows[-1][_RUN_ID_COLUMN]
            return found[query.offset : wanted]

        return await self._do(find)

    async def damaged_runs(self) -> list[str]:
        """The ids of the runs that `find` passes over, as they cannot be read."""

        async def find(connection: Connection) -> list[str]:
            rows = await self._rows(
                connection,
                "SELECT run_id FROM {schema}.runs WHERE status <> ALL(%s)"
                ' ORDER BY run_id COLLATE "C"',
                ([str(status) for status in RunStatus],),
            )
            return [unescaped(run_id) for (run_id,) in rows]

        return await self._do(find)

    async def delete(self, run_id: str) -> None:
        seen: list[tuple[Any, ...]] = []

        async def delete(connection: Connection) -> None:
            nonlocal seen
            async with connection.transaction():
                held = await self._rows(
                    connection,
                    "SELECT owner, expires_at, {schema}.now() FROM {schema}.leases"
                    " WHERE key = %s FOR UPDATE",
                    (key_of(run_id),),
                )
                # A run that is begun anew has the number of the old one, and begins later.
                found = await self._rows(
                    connection,
                    "SELECT number, written_at FROM {schema}.runs"
                    " LEFT JOIN {schema}.entries ON run = number AND sequence = 1 WHERE key = %s",
                    (key_of(run_id),),
                )
                if seen and found != seen:
                    # The first sending has deleted it, and its answer was lost.
                    return
                if not found:
                    raise RunNotFound(run_id)
                seen = found
                for owner, expires_at, now in held:
                    if owner and Lease(run_id, owner, 0, expires_at).is_held(now):
                        raise RunBusy(run_id, owner, expires_at - now)
                number = found[0][:1]
                await self._rows(
                    connection, "DELETE FROM {schema}.runs WHERE number = %s RETURNING 1", number
                )
                await self._rows(
                    connection, "DELETE FROM {schema}.entries WHERE run = %s RETURNING 1", number
                )
                # Whoever let it expire must not go on as if it were a new run.
                await self._rows(
                    connection,
                    "UPDATE {schema}.leases SET owner = '' WHERE key = %s RETURNING 1",
                    (key_of(run_id),),
                )

        await self._do(delete)

    # How it talks to the server.

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")

    async def _do(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        """Do this on a connection; again if that is lost, as none of this does harm twice."""
        pool = self._pool
        if pool is None:
            raise self._not_open()

        async def attempt() -> A:
            async with pool.connection() as connection:
                return await work(connection)

        try:
            return await self._bridge.call(lambda: self._patience.ask(attempt))
        except psycopg.Error as error:
            raise StoreUnavailable(repr(self), f"it refused a statement: {error}") from error


def _is_lost(error: Exception) -> bool:
    """Whether trying again may be of use."""
    given_up = psycopg.errors.QueryCanceled
    return isinstance(error, psycopg.OperationalError) and not isinstance(error, given_up)


def _conditions(query: RunQuery) -> tuple[str, list[Any]]:
    conditions, parameters = ["true"], list[Any]()
    if query.workflow is not None:
        conditions.append("workflow = %s")
        parameters.append(escaped(query.workflow))
    if query.statuses:
        conditions.append("status = ANY(%s)")
        parameters.append([str(status) for status in query.statuses])
    if query.resumable:
        conditions.append("status <> %s")
        parameters.append(str(RunStatus.COMPLETED))
    if query.updated_before is not None:
        conditions.append("newest.written_at < %s")
        parameters.append(query.updated_before)
    return " AND ".join(conditions), parameters


def _info(row: Sequence[Any]) -> RunInfo:
    run_id, workflow, kind, version, status, created_at, updated_at, length = row[:8]
    owner, fence, expires_at = row[8:11]
    run_id = unescaped(run_id)
    lease = None if owner is None else Lease(run_id, owner, fence, expires_at)
    summary = RunSummary(
        unescaped(workflow),
        kind,
        unescaped(version),
        RunStatus.stored(status, run_id),
        created_at,
    )
    return RunInfo(run_id, summary, updated_at, length, lease)


_RUN_ID_COLUMN, _CREATED_AT_COLUMN, _NOW_COLUMN = 0, 5, 11

_INFO = """
    SELECT runs.run_id, workflow, kind, version, status, created_at, newest.written_at,
           newest.sequence, leases.owner, leases.fence, leases.expires_at, {schema}.now()
    FROM {schema}.runs
    JOIN LATERAL (
        SELECT sequence, written_at FROM {schema}.entries WHERE run = number
        ORDER BY sequence DESC LIMIT 1
    ) AS newest ON true
    LEFT JOIN {schema}.leases ON leases.key = runs.key AND leases.owner <> ''
"""

_BEHIND = """
    created_at <= %s AND (created_at < %s OR runs.run_id COLLATE "C" > %s)
    ORDER BY created_at DESC, runs.run_id COLLATE "C"
"""
"""The runs after the one that was created at a time and has an id, newest first."""
