"""Runs in a PostgreSQL database, for many processes on many hosts."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg_pool import AsyncConnectionPool

from effectflow.checkpoint.errors import RunEnded, RunNotFound, SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    NOTICE,
    Changes,
    Claimed,
    DueRuns,
    Message,
    Record,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.stores._changes import Announcements
from effectflow.stores._postgres_changes import Listener, Notifier, channel_of, listening
from effectflow.stores._postgres_connection import (
    CLOSING_SECONDS,
    Connection,
    Queries,
    Renewals,
    explained,
    is_lost,
    location_of,
    parsed,
    set_timeout,
)
from effectflow.stores._postgres_due import INFO, DueClaims, info_of
from effectflow.stores._postgres_schema import escaped, fields_of, key_of, migrate, unescaped
from effectflow.stores._postgres_writer import LOCK_DELAYS, Append, Writer
from effectflow.stores._rules import check_deletable, check_holder, check_kept
from effectflow.stores._servers import Held, ServerStore, repeated, take_over
from effectflow.stores._summaries import page, readable, sql_conditions

A = TypeVar("A")

_ROWS_PER_READ = 200

_LOCK_SECONDS = 0.1
"""How long a request that waits for a lock keeps a connection from the others."""


class PostgresStore(ServerStore):
    """Keeps runs in PostgreSQL. Needs the extra `effectflow[postgres]` (psycopg 3).

    A durable append is one round trip. Appends that are requested while another one is in progress are
    sent together, so that many runs share the cost of a commit. If the connection is lost, an append is
    sent again, and never written twice. The clock of the server decides, so hosts whose clocks differ
    agree on leases.

    Parameters:
        dsn: a connection string, such as `postgresql://user@host/database`. It is never logged.
        schema: the schema that contains the tables; created and migrated when the store is opened.
        pool_size: the maximum number of connections, besides those that write, renew leases and announce
            changes, and one for each open `changes`.
        statement_timeout: the seconds after which the server cancels a statement. Also how long a
            request waits for a run that another program has locked; requests for other runs do not wait.
        reconnect_timeout: how long (seconds, or a `timedelta`) to try to reconnect to a lost server.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    Raise ValueError for a connection string that cannot be parsed. Opening raises StoreUnavailable, or
    UnsupportedVersion if a newer effectflow migrated the schema, or one from before the first release.
    """

    _pool: AsyncConnectionPool[Connection]
    _renewals: Renewals
    _writer: Writer
    _notifier: Notifier

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "effectflow",
        pool_size: int = 4,
        statement_timeout: Duration = 30.0,
        reconnect_timeout: Duration = 15.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__(
            reconnect_timeout=in_seconds(reconnect_timeout),
            driver_error=psycopg.Error,
            is_lost=is_lost,
        )
        self._parameters = parsed(dsn)
        self._schema = schema
        self._pool_size = pool_size
        self._statement_timeout = in_seconds(statement_timeout)
        self._queries = Queries(schema)
        self._renew_timeout = in_seconds(renew_timeout)
        self._announcements = Announcements()
        self._requests: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        shown = {**location_of(self._parameters), "schema": self._schema}
        return f"PostgresStore({', '.join(f'{name}={part!r}' for name, part in shown.items())})"

    @property
    def durability(self) -> str:
        return "full"

    async def _connect(self) -> None:
        self._renewals = Renewals(self._parameters, self._queries, timeout=self._renew_timeout)
        self._opened.callback(self._renewals.close)
        self._notifier = Notifier(self._new_connection, channel_of(self._schema))
        self._opened.push_async_callback(self._notifier.close)
        self._writer = Writer(
            *(self._queries, self._new_connection, self._persist, self._announce),
            lock_timeout=self._statement_timeout,
        )
        self._opened.push_async_callback(self._writer.close)
        # The first one is not the pool's, because a pool does not say why it cannot connect.
        await migrate(await self._writer.connection(), self._schema)
        self._pool = AsyncConnectionPool(
            kwargs=self._parameters,
            configure=self._configure_shared,
            min_size=0,
            max_size=self._pool_size,
            open=False,
            timeout=self._reconnect_timeout,
        )
        self._opened.push_async_callback(self._pool.close, CLOSING_SECONDS)
        self._opened.push_async_callback(self._end_requests)
        await self._pool.open()

    async def _new_connection(self, *settings: sql.Composed) -> Connection:
        connection = await psycopg.AsyncConnection[Any].connect(**self._parameters)
        try:
            await self._configure(connection, *settings)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _configure(self, connection: Connection, *settings: sql.Composed) -> None:
        # Not through `options`, which would replace those of the connection string.
        for setting in (set_timeout("statement", self._statement_timeout), *settings):
            await connection.execute(setting)

    async def _configure_shared(self, connection: Connection) -> None:
        await self._configure(connection, set_timeout("lock", _LOCK_SECONDS))

    async def _ask_claim(self, wanted: Lease, seconds: float, free: int) -> Held:
        uptime = wanted.expires_at_uptime
        [(*lease, now)] = await self._query(
            "SELECT owner, fence, expires_at, expires_at_uptime, {schema}.now()"
            " FROM {schema}.claim(%s, %s, %s, %s, %s)",
            (key_of(wanted.run_id), wanted.owner, seconds, uptime, free),
        )
        return Held(Lease(wanted.run_id, *lease), now)

    def _ask_renewal(self, renewed: Lease, seconds: float) -> float | str:
        key = key_of(renewed.run_id)
        rows = self._renewals.rows(
            "UPDATE {schema}.leases SET expires_at = {schema}.now() + %s, expires_at_uptime = %s"
            " WHERE key = %s AND owner = %s AND fence = %s RETURNING expires_at",
            (seconds, renewed.expires_at_uptime, key, renewed.owner, renewed.fence),
        )
        if rows:
            return rows[0][0]
        held = self._renewals.rows("SELECT owner FROM {schema}.leases WHERE key = %s", (key,))
        if not held:
            return "gone"
        return f"held {held[0][0]}" if held[0][0] else "released"

    async def release(self, lease: Lease) -> None:
        parameters = (key_of(lease.run_id), lease.owner, lease.fence)
        await self._query("SELECT {schema}.release(%s, %s, %s)", parameters)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        self._check_open()

        async def submit() -> None:
            entries = [bytes(body) for body in bodies]
            await self._writer.submit(Append(lease, entries, after, summary, release, takes, seen))

        await self._in_asyncio(submit)

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        entries = [bytes(body) for body in bodies]
        change = json.dumps(fields_of(run_id, summary))

        async def ask(free: int) -> bool | Held:
            rows = await self._query(
                "SELECT owner, fence, expires_at, expires_at_uptime, {schema}.now()"
                " FROM {schema}.create_run(%b::bytea, %s::text::jsonb, %b::bytea[], %s::bigint)",
                (key_of(run_id), change, entries, free),
            )
            if not rows:
                return False
            *lease, now = rows[0]
            return Held(Lease(run_id, *lease), now) if lease[0] else True

        with _as_save_failed(run_id):
            is_new = await take_over(ask)
        if is_new:
            await self._tell(run_id)
        return is_new

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        digest = None if topic == NOTICE else key_of(json.dumps([topic, key]))
        message = (escaped(topic), escaped(key), digest, bytes(body), uuid.uuid4())
        with _as_save_failed(run_id):
            [(answer, told)] = await self._query(
                "SELECT answer, told FROM {schema}.send("
                "%b::bytea, %s::text, %s::text, %b::bytea, %b::bytea, %s::uuid)",
                (key_of(run_id), *message),
            )
        kind, _, status = answer.partition(" ")
        if kind == "unknown":
            raise RunNotFound(run_id)
        if kind == "ended":
            raise RunEnded(run_id, RunStatus(status))
        await self._tell(run_id, *map(unescaped, told or ()))
        return kind == "new"

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        rows = await self._query(
            "SELECT messages.number, topic, messages.key, sent_at, body"
            " FROM {schema}.messages JOIN {schema}.runs ON run = runs.number"
            " WHERE runs.key = %s AND messages.number > %s ORDER BY messages.number",
            (key_of(run_id), after),
        )
        return [
            Message(number, unescaped(topic), unescaped(key), sent_at, bytes(body))
            for number, topic, key, sent_at, body in rows
        ]

    async def claim_due(self, due: DueRuns) -> Claimed:
        claims = DueClaims(self._queries, due)
        return await self._do(claims.attempt)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        async with (
            self._announcements.watch() as watcher,
            self._following(self._listen, watcher),
        ):
            yield watcher

    async def _listen(self) -> Listener:
        connection = await self._new_connection(listening(channel_of(self._schema)))
        return Listener(connection, self._notifier.has_sent)

    def _announce(self, run_ids: Sequence[str]) -> None:
        """Announce these runs to this and other processes, in asyncio."""
        self._announcements.announce(*run_ids)
        if run_ids:
            self._notifier.tell(run_ids)

    async def _tell(self, *run_ids: str) -> None:
        async def announce() -> None:
            self._announce(run_ids)

        await self._in_asyncio(announce)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        rows = await self._query(
            "SELECT sequence, written_at, body FROM {schema}.entries JOIN {schema}.runs"
            " ON run = number WHERE key = %s AND sequence > %s ORDER BY sequence",
            (key_of(run_id), after),
        )
        return [Record(sequence, at, bytes(body)) for sequence, at, body in rows]

    async def info(self, run_id: str) -> RunInfo | None:
        rows = await self._query(f"{INFO} WHERE runs.key = %s", (key_of(run_id),))
        return info_of(rows[0]) if rows else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        workflow = None if query.workflow is None else escaped(query.workflow)
        conditions, parameters = sql_conditions(
            replace(query, workflow=workflow, prefix=escaped(query.prefix)), "%s", _SORTED_ID
        )
        statement = f"{INFO} WHERE {conditions} AND {_BEHIND} LIMIT %s"
        wanted = math.inf if query.limit is None else query.offset + query.limit
        found: list[RunInfo] = []
        created_at, run_id, has_more = math.inf, "", True
        while has_more and len(found) < wanted:
            # From the last run on, not by position, because runs come and go between the queries.
            behind = (created_at, created_at, run_id)
            rows = await self._query(statement, (*parameters, *behind, _ROWS_PER_READ))
            # SQL cannot check whether an owner is alive, so the paging happens here.
            for row in rows:
                created_at, run_id, now = row[_CREATED_AT], row[_RUN_ID], row[_NOW]
                found += [info for info in readable([row], info_of) if query.matches(info, now)]
            has_more = len(rows) == _ROWS_PER_READ
        return page(found, query)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        rows = await self._query(
            'SELECT run_id FROM {schema}.runs WHERE status <> ALL(%s) ORDER BY run_id COLLATE "C"',
            ([str(status) for status in RunStatus],),
        )
        return [unescaped(run_id) for (run_id,) in rows]

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        key, number = (key_of(run_id),), None

        async def delete(connection: Connection) -> None:
            nonlocal number
            rows = self._queries.rows
            async with connection.transaction():
                held = await rows(
                    connection,
                    "SELECT owner, fence, expires_at, expires_at_uptime, {schema}.now()"
                    " FROM {schema}.leases WHERE key = %s FOR UPDATE",
                    key,
                )
                found = await rows(
                    connection, "SELECT number FROM {schema}.runs WHERE key = %s", key
                )
                if number is not None and (not found or found[0] != number):
                    # The first request deleted the run, and its answer was lost.
                    return
                if not found:
                    raise RunNotFound(run_id)
                number = found[0]
                for *there, now in held:
                    check_deletable(lease, Lease(run_id, *there), now=now)
                for statement in _DELETE:
                    await rows(connection, statement, number)

        await self._do(delete)
        await self._tell(run_id)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        key = key_of(lease.run_id)

        async def truncate(connection: Connection) -> None:
            rows = self._queries.rows
            async with connection.transaction():
                held = await rows(
                    connection,
                    "SELECT number, owner, fence FROM {schema}.leases WHERE key = %s FOR UPDATE",
                    (key,),
                )
                number, owner, fence = held[0] if held else (None, "", 0)
                check_holder(lease, owner, fence)
                [(length,)] = await rows(
                    connection,
                    "SELECT coalesce(max(sequence), 0) FROM {schema}.entries WHERE run = %s",
                    (number,),
                )
                check_kept(lease, length, after=after)
                await rows(connection, _CUT, (number, after))
                fields = json.dumps(fields_of(lease.run_id, summary))
                await rows(connection, _RESUMMARIZE, (number, key, fields))

        await self._do(truncate)

    # Requests to the server.

    def _explained(self, error: Exception) -> str:
        return explained(error)

    async def _query(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        """Return the rows of a statement, which may be repeated after a lost connection."""
        return await self._do(
            lambda connection: self._queries.rows(connection, statement, parameters)
        )

    async def _do(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        """Return the result of `work`, which may be repeated after a lost connection.

        It is also repeated while another program has locked the run. In between it has no connection, so
        that others can use it.
        """

        async def attempt() -> A:
            connection = await self._pool.getconn()
            # Not in the caller's task, because a cancellation there would close the connection.
            request = asyncio.create_task(self._work_with(connection, work))
            self._requests.add(request)
            request.add_done_callback(self._forget)
            await asyncio.wait([request])
            return request.result()

        async def attempt_while_locked() -> A:
            return await repeated(
                attempt, LOCK_DELAYS, is_temporary=_is_locked, seconds=self._statement_timeout
            )

        return await self._ask(attempt_while_locked)

    async def _work_with(
        self, connection: Connection, work: Callable[[Connection], Awaitable[A]]
    ) -> A:
        try:
            return await work(connection)
        finally:
            await self._pool.putconn(connection)

    def _forget(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            # Without this, asyncio logs the error of a request whose caller was cancelled.
            request.exception()

    async def _end_requests(self) -> None:
        """Wait for the requests whose callers were cancelled, unless the server does not answer."""
        if self._requests:
            _, late = await asyncio.wait(self._requests, timeout=CLOSING_SECONDS)
            for request in late:
                request.cancel()


def _is_locked(error: Exception) -> bool:
    return isinstance(error, psycopg.errors.LockNotAvailable)


@contextmanager
def _as_save_failed(run_id: str) -> Generator[None]:
    """Raise SaveFailed instead of StoreUnavailable. A request that was lost may have been executed."""
    try:
        yield
    except StoreUnavailable as error:
        raise SaveFailed(run_id, str(error), is_unknown=True) from error


_RUN_ID, _CREATED_AT, _NOW = 0, 5, -1

_DELETE = (
    "DELETE FROM {schema}.runs WHERE number = %s RETURNING 1",
    "DELETE FROM {schema}.entries WHERE run = %s RETURNING 1",
    "DELETE FROM {schema}.leases WHERE number = %s RETURNING 1",
    "DELETE FROM {schema}.messages WHERE run = %s RETURNING 1",
    "DELETE FROM {schema}.received WHERE run = %s RETURNING 1",
)

_CUT = "DELETE FROM {schema}.entries WHERE run = %s AND sequence > %s RETURNING 1"

_RESUMMARIZE = "SELECT {schema}.summarize(%s::bigint, %b::bytea, %s::text::jsonb)"

_SORTED_ID = 'runs.run_id COLLATE "C"'

_BEHIND = """
    created_at <= %s AND (created_at < %s OR runs.run_id COLLATE "C" > %s)
    ORDER BY created_at DESC, runs.run_id COLLATE "C"
"""
"""Selects the runs after the one with this time of creation and this id, newest first."""
