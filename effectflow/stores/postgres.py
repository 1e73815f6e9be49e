"""Runs in a PostgreSQL database, for many processes on many hosts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    RunBusy,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import Record, RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.effects import RetryPolicy
from effectflow.stores.asyncio_bridge import AsyncioBridge
from effectflow.stores.postgres_schema import migrate

__all__ = ["PostgresStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_PAGE = 200
_APPENDS_IN_A_BATCH = 500
_PATIENCE = RetryPolicy.exponential(0.05).with_max_delay(1).with_max_elapsed(15).with_full_jitter()
"""How long a lost connection is looked for again."""


class PostgresStore:
    """Keeps runs in PostgreSQL. Needs the extra `effectflow[postgres]` (psycopg 3).

    A durable append is one round trip. Appends that are asked for while another is under way go
    together in the next one, so many runs share the price of a commit. A connection that is lost is
    looked for again for 15 seconds; an append that was cut off in between is found out about, and is
    never written twice. Time is that of the server, so hosts whose clocks differ agree on leases.

    Parameters:
        dsn: a connection string, such as `postgresql://user@host/database`. It is never logged.
        schema: the schema that its tables are kept in; made, and brought up to date, when it is opened.
        pool_size: connections at most, besides the one that writes.
        statement_timeout: seconds after which the server gives a statement up.

    Opening fails with StoreUnavailable, or with UnsupportedVersion if a newer effectflow has been there.
    """

    durability = "full"

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "effectflow",
        pool_size: int = 4,
        statement_timeout: float = 30.0,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._pool_size = pool_size
        self._timeout = statement_timeout
        self._writing: AsyncConnection[Any] | None = None
        self._queries: dict[str, bytes] = {}
        self._bridge = AsyncioBridge()
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._waiting: list[_Append] = []
        self._has_waiting = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PostgresStore(schema={self._schema!r})"

    async def __aenter__(self) -> Self:
        await self._bridge.open()
        try:
            await self._bridge.call(self._open)
        except BaseException:
            await self._bridge.close()
            raise
        return self

    async def _open(self) -> None:
        pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            self._dsn,
            min_size=1,
            max_size=self._pool_size + 1,
            open=False,
            timeout=10,
            kwargs={
                "autocommit": True,
                "options": f"-c statement_timeout={self._timeout * 1000:.0f}",
            },
        )
        try:
            await pool.open(wait=True, timeout=10)
            async with pool.connection() as connection:
                await migrate(connection, self._schema)
        except (psycopg.Error, PoolTimeout) as error:
            await pool.close()
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error
        except BaseException:
            await pool.close()
            raise
        self._pool = pool
        self._has_waiting = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._bridge.call(self._close)
        await self._bridge.close()

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        writer, self._writer = self._writer, None
        self._has_waiting.set()
        if writer is not None:
            await writer
        if pool is not None:
            if self._writing is not None:
                await pool.putconn(self._writing)
                self._writing = None
            await pool.close()

    # The contract of a store.

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        async def claim(connection: AsyncConnection[Any]) -> Lease:
            dead = -1
            while True:
                [row] = await self._rows(
                    connection,
                    "SELECT owner, fence, expires_at, {schema}.now() FROM {schema}.claim(%s, %s, %s, %s)",
                    (_key(run_id), owner, seconds, dead),
                )
                holder, fence, expires_at, now = row
                if holder == owner:
                    return Lease(run_id, owner, fence, expires_at)
                parsed = Owner.parse(holder)
                if fence == dead or parsed is None or not parsed.is_dead():
                    raise RunBusy(run_id, holder, expires_at - now)
                dead = fence

        return await self._do(claim)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        async def renew(connection: AsyncConnection[Any]) -> Lease:
            rows = await self._rows(
                connection,
                "UPDATE {schema}.leases SET expires_at = {schema}.now() + %s"
                " WHERE key = %s AND fence = %s AND owner <> '' RETURNING expires_at",
                (seconds, _key(lease.run_id), lease.fence),
            )
            if not rows:
                raise LeaseLost(lease.run_id, "somebody else has claimed it")
            return Lease(lease.run_id, lease.owner, lease.fence, rows[0][0])

        return await self._do(renew)

    async def release(self, lease: Lease) -> None:
        async def release(connection: AsyncConnection[Any]) -> None:
            await self._rows(
                connection,
                "UPDATE {schema}.leases SET owner = '' WHERE key = %s AND fence = %s RETURNING 1",
                (_key(lease.run_id), lease.fence),
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
        self._check_open()

        async def submit() -> None:
            append = _Append(lease, [bytes(body) for body in bodies], after, summary, release)
            self._waiting.append(append)
            self._has_waiting.set()
            await append.done

        await self._bridge.call(submit)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        async def read(connection: AsyncConnection[Any]) -> list[Record]:
            rows = await self._rows(
                connection,
                "SELECT sequence, written_at, body FROM {schema}.entries JOIN {schema}.runs"
                " ON run = number WHERE key = %s AND sequence > %s ORDER BY sequence",
                (_key(run_id), after),
            )
            return [Record(sequence, at, bytes(body)) for sequence, at, body in rows]

        return await self._do(read)

    async def info(self, run_id: str) -> RunInfo | None:
        async def info(connection: AsyncConnection[Any]) -> RunInfo | None:
            rows = await self._rows(connection, f"{_INFO} WHERE runs.key = %s", (_key(run_id),))
            return _info(rows[0]) if rows else None

        return await self._do(info)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        async def find(connection: AsyncConnection[Any]) -> list[RunInfo]:
            conditions, parameters = _conditions(query)
            statement = (
                f'{_INFO} WHERE {conditions} ORDER BY created_at DESC, runs.run_id COLLATE "C"'
                " LIMIT %s OFFSET %s"
            )
            wanted = query.offset + query.limit
            found: list[RunInfo] = []
            seen = 0
            while len(found) < wanted:
                rows = await self._rows(connection, statement, (*parameters, _PAGE, seen))
                # Whether an owner lives is not for SQL to say, so paging is done on what is left.
                found += [
                    info for row in rows if query.matches(info := _info(row), row[_NOW_COLUMN])
                ]
                seen += len(rows)
                if len(rows) < _PAGE:
                    break
            return found[query.offset : wanted]

        return await self._do(find)

    async def delete(self, run_id: str) -> None:
        async def delete(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                rows = await self._rows(
                    connection,
                    "SELECT owner, expires_at, {schema}.now() FROM {schema}.leases"
                    " WHERE key = %s FOR UPDATE",
                    (_key(run_id),),
                )
                for owner, expires_at, now in rows:
                    if owner and Lease(run_id, owner, 0, expires_at).is_held(now):
                        raise RunBusy(run_id, owner, expires_at - now)
                deleted = await self._rows(
                    connection,
                    "DELETE FROM {schema}.runs WHERE key = %s RETURNING number",
                    (_key(run_id),),
                )
                if not deleted:
                    raise RunNotFound(run_id)
                await self._rows(
                    connection,
                    "DELETE FROM {schema}.entries WHERE run = %s RETURNING 1",
                    deleted[0],
                )

        await self._do(delete)

    # How it talks to the server.

    def _check_open(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        if self._pool is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        return self._pool

    async def _do(self, work: Callable[[AsyncConnection[Any]], Awaitable[A]]) -> A:
        """Do this on a connection; again if that is lost, as none of this does harm twice."""
        self._check_open()

        async def attempt() -> A:
            async with self._check_open().connection() as connection:
                return await work(connection)

        return await self._bridge.call(lambda: self._patiently(attempt))

    async def _patiently(self, attempt: Callable[[], Awaitable[A]]) -> A:
        began = time.monotonic()
        delays: Iterator[float] | None = None
        while True:
            try:
                return await attempt()
            except (psycopg.OperationalError, PoolTimeout) as error:
                delays = delays or _PATIENCE.delays()
                delay = next(delays)
                elapsed = time.monotonic() - began
                if _is_final(error) or elapsed + delay > (_PATIENCE.max_elapsed or 0):
                    raise StoreUnavailable(repr(self), f"it cannot be reached: {error}") from error
                logger.warning("a connection to %r was lost; it is looked for again", self)
                await asyncio.sleep(delay)
            except psycopg.Error as error:
                raise StoreUnavailable(repr(self), f"it refused a statement: {error}") from error

    async def _rows(
        self, connection: AsyncConnection[Any], statement: str, parameters: Sequence[Any]
    ) -> list[Any]:
        query = self._queries.get(statement)
        if query is None:
            composed = sql.SQL(statement).format(schema=sql.Identifier(self._schema))  # pyright: ignore[reportArgumentType]  # all of them literal
            query = self._queries[statement] = composed.as_bytes(None)
        cursor = await connection.execute(query, parameters, binary=True)
        return await cursor.fetchall()

    async def _write(self) -> None:
        """Send what waits, together, until the store is closed."""
        while True:
            await self._has_waiting.wait()
            batch, self._waiting = (
                self._waiting[:_APPENDS_IN_A_BATCH],
                self._waiting[_APPENDS_IN_A_BATCH:],
            )
            if not self._waiting and self._pool is not None:
                self._has_waiting.clear()
            if batch:
                await self._send(batch)
            elif self._pool is None:
                return

    async def _send(self, batch: list[_Append]) -> None:
        try:
            await self._patiently(lambda: self._append(batch))
        except CheckpointError as error:
            for append in batch:
                append.end(SaveFailed(append.lease.run_id, str(error)))
        except Exception as defect:
            # Nobody is to wait for ever.
            for append in batch:
                append.end(defect)
        else:
            for append in batch:
                append.end(append.refusal)

    async def _append(self, batch: list[_Append]) -> None:
        """Send what is not known to be there yet. Called again when the answer got lost."""
        connection = await self._writing_connection()
        for append in batch:
            if append.is_unknown:
                append.is_answered = await self._is_written(connection, append)
        # In one order for everybody, so that no two programs wait for one another's locks.
        todo = sorted((one for one in batch if not one.is_answered), key=lambda one: one.key)
        for append in todo:
            append.is_unknown = True
        answers: list[Any] = []
        if len(todo) == 1:
            answers = await self._rows(connection, _APPEND, _row(todo[0]))
        elif todo:
            answers = await self._rows(connection, _APPEND_ALL, _columns(todo))
        for append, (problem,) in zip(todo, answers, strict=True):
            append.is_answered = True
            append.refusal = None if problem is None else _refusal(append, problem)

    async def _writing_connection(self) -> AsyncConnection[Any]:
        """The connection that appends are sent on; another one if it was lost."""
        pool, connection = self._check_open(), self._writing
        if connection is not None and not connection.closed:
            return connection
        self._writing = None
        if connection is not None:
            await pool.putconn(connection)
        self._writing = await pool.getconn()
        return self._writing

    async def _is_written(self, connection: AsyncConnection[Any], append: _Append) -> bool:
        """Whether an append happened whose answer was lost. Nobody else writes with its fence."""
        rows = await self._rows(
            connection,
            "SELECT body FROM {schema}.entries JOIN {schema}.runs ON run = number"
            " WHERE key = %s AND sequence > %s AND sequence <= %s ORDER BY sequence",
            (append.key, append.after, append.after + len(append.bodies)),
        )
        if append.bodies:
            return [bytes(body) for (body,) in rows] == append.bodies
        released = await self._rows(
            connection,
            "SELECT 1 FROM {schema}.leases WHERE key = %s AND fence = %s AND owner = ''",
            (append.key, append.lease.fence),
        )
        return append.release and bool(released)


@dataclass(slots=True, eq=False)
class _Append:
    """An append that waits for its turn, or for its answer.

    Attributes:
        is_unknown: it was sent; if it is sent again, the first time may have worked.
        is_answered: the server has said what became of it.
        refusal: why it was refused, if it was.
    """

    lease: Lease
    bodies: list[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    is_unknown: bool = False
    is_answered: bool = False
    refusal: Exception | None = None
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> bytes:
        return _key(self.lease.run_id)

    def end(self, error: Exception | None) -> None:
        """Tell who waits; nobody does if the wait was cancelled."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


_APPEND = """
    SELECT {schema}.append(%b::bytea, %s::bigint, %s::bigint, %s::bool, %s::text::jsonb,
                           %b::bytea[])
"""

_APPEND_ALL = """
    SELECT * FROM {schema}.append_all(%b::bytea[], %s::bigint[], %s::bigint[], %s::bool[],
                                      %s::text[]::jsonb[], %s::int[], %b::bytea[])
"""


def _row(append: _Append) -> tuple[Any, ...]:
    summary, bodies = _summary_json(append), append.bodies
    return append.key, append.lease.fence, append.after, append.release, summary, bodies


def _columns(batch: Sequence[_Append]) -> tuple[Any, ...]:
    *columns, bodies = (list(column) for column in zip(*map(_row, batch), strict=True))
    return *columns, [len(part) for part in bodies], [body for part in bodies for body in part]


def _summary_json(append: _Append) -> str | None:
    summary = append.summary
    if summary is None:
        return None
    return json.dumps(
        {
            "run_id": _escaped(append.lease.run_id),
            "workflow": _escaped(summary.workflow),
            "kind": summary.kind,
            "version": _escaped(summary.version),
            "status": str(summary.status),
            "created_at": summary.created_at,
        }
    )


def _refusal(append: _Append, problem: str) -> Exception:
    if problem == "no summary":
        return ValueError("the first append of a run needs a summary")
    return LeaseLost(append.lease.run_id, problem)


def _key(run_id: str) -> bytes:
    """What a run is found by: an index takes no long texts."""
    return hashlib.sha256(run_id.encode()).digest()


def _escaped(text: str) -> str:
    """Text without the one character that PostgreSQL does not take."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def _is_final(error: Exception) -> bool:
    """Whether trying again is of no use."""
    return isinstance(error, psycopg.errors.QueryCanceled)


def _conditions(query: RunQuery) -> tuple[str, list[Any]]:
    conditions, parameters = ["true"], list[Any]()
    if query.workflow is not None:
        conditions.append("workflow = %s")
        parameters.append(_escaped(query.workflow))
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
    lease = None if owner is None else Lease(_unescaped(run_id), owner, fence, expires_at)
    summary = RunSummary(
        _unescaped(workflow), kind, _unescaped(version), RunStatus(status), created_at
    )
    return RunInfo(_unescaped(run_id), summary, updated_at, length, lease)


_NOW_COLUMN = 11

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
