"""Runs in a PostgreSQL database, for many processes on many hosts."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.abc import PQGen
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
    notifies_parent,
)
from effectflow.effects import RetryPolicy
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.stores._base import (
    check_current,
    check_deletable,
    check_kept,
    check_messages,
    page,
    readable,
    sql_conditions,
    summary_fields,
)
from effectflow.stores._changes import Announcements
from effectflow.stores._postgres_changes import Listener, Notifier, channel_of
from effectflow.stores._postgres_due import ESCAPED_FIELDS, INFO, DueClaims, info_of
from effectflow.stores._postgres_schema import Queries, escaped, key_of, migrate, unescaped
from effectflow.stores._servers import Held, ServerStore, check_appended, take_over

A = TypeVar("A")

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_APPENDS_PER_BATCH = 500
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several appends. The server refuses a statement of a gibibyte, and closes
the connection."""

_ROWS_PER_READ = 200
_CONNECT_SECONDS = 10

_CLOSING_SECONDS = 1.0
"""How long closing waits for a server that does not answer what no caller waits for."""

_LOCK_SECONDS = 0.1
"""How long a request that waits for a lock keeps a connection from the others."""

_RENEWAL_LOCK_SECONDS = 0.5
"""How long the renewal of one lease that another program has locked may delay those of others."""

_LOCK_DELAYS = RetryPolicy.exponential(0.01).with_max_delay(0.25).with_full_jitter()


class PostgresStore(ServerStore):
    """Keeps runs in PostgreSQL. Needs the extra `effectflow[postgres]` (psycopg 3).

    A durable append is one round trip. Appends that are requested while another one is under way are
    sent together, so that many runs share the price of a commit. An append whose connection is lost is
    sent again, and never written twice. Time is the server's, so hosts whose clocks differ agree on
    leases.

    Parameters:
        dsn: a connection string, such as `postgresql://user@host/database`. It is never logged.
        schema: the schema that contains the tables; created and migrated when the store is opened.
        pool_size: the maximum number of connections, besides those that write and renew leases.
        statement_timeout: the seconds after which the server gives up a statement. Also how long a
            request waits for a run that another program has locked; requests for other runs do not wait.
        reconnect_timeout: how long (seconds, or a `timedelta`) to try to reconnect to a lost server.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    Raise ValueError for a connection string that cannot be parsed. Opening raises StoreUnavailable, or
    UnsupportedVersion if a newer effectflow migrated the schema.
    """

    _pool: AsyncConnectionPool[Connection]
    _renewals: _Renewals
    _writer: _Writer
    _notifier: Notifier
    _listener: Listener

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
            is_lost=_is_lost,
        )
        self._parameters = _parsed(dsn)
        self._schema = schema
        self._pool_size = pool_size
        self._statement_timeout = in_seconds(statement_timeout)
        self._queries = Queries(schema)
        self._rows = self._queries.rows
        self._renew_timeout = in_seconds(renew_timeout)
        self._announcements = Announcements()

    def __repr__(self) -> str:
        return f"PostgresStore(schema={self._schema!r})"

    @property
    def durability(self) -> str:
        return "full"

    async def _connect(self) -> None:
        self._renewals = _Renewals(self._parameters, self._queries, timeout=self._renew_timeout)
        self._opened.callback(self._renewals.close)
        channel = channel_of(self._schema)
        self._notifier = notifier = Notifier(self._new_connection, channel)
        self._opened.push_async_callback(notifier.close)
        self._listener = Listener(
            *(self._new_connection, channel, self._announcements),
            is_own=lambda backend: backend == notifier.backend,
        )
        self._opened.push_async_callback(self._listener.close)
        self._writer = _Writer(
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
        self._opened.push_async_callback(self._pool.close, _CLOSING_SECONDS)
        await self._pool.open()

    async def _new_connection(self) -> Connection:
        connection = await psycopg.AsyncConnection[Any].connect(**self._parameters)
        try:
            await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _configure(self, connection: Connection) -> None:
        # Not through `options`, which would replace those of the connection string.
        await connection.execute(_set_timeout("statement", self._statement_timeout))

    async def _configure_shared(self, connection: Connection) -> None:
        await self._configure(connection)
        await connection.execute(_set_timeout("lock", _LOCK_SECONDS))

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
            await self._writer.submit(_Append(lease, entries, after, summary, release, takes, seen))

        await self._in_asyncio(submit)

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        entries = [bytes(body) for body in bodies]
        change = json.dumps(_fields(run_id, summary))

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
            [(answer,)] = await self._query(
                "SELECT {schema}.send(%b::bytea, %s::text, %s::text, %b::bytea, %b::bytea, %s::uuid)",
                (key_of(run_id), *message),
            )
        kind, _, status = answer.partition(" ")
        if kind == "unknown":
            raise RunNotFound(run_id)
        if kind == "ended":
            raise RunEnded(run_id, RunStatus(status))
        await self._tell(run_id)
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
        self._check_open()
        listener = self._listener
        async with self._announcements.watch() as changes:
            try:
                await self._in_asyncio(listener.begin)
                yield changes
            finally:
                await shielded(self._in_asyncio(listener.end))

    def _announce(self, run_ids: Sequence[str]) -> None:
        """Tell that these runs changed, in asyncio."""
        for run_id in run_ids:
            self._announcements.announce(run_id)
        if run_ids:
            self._notifier.tell(run_ids)

    async def _tell(self, run_id: str) -> None:
        async def announce() -> None:
            self._announce([run_id])

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
            # From the last run on, and not by its position, since runs come and go in between.
            behind = (created_at, created_at, run_id)
            rows = await self._query(statement, (*parameters, *behind, _ROWS_PER_READ))
            # SQL cannot tell whether an owner lives, so the paging is done here.
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
                    # The first request has deleted the run, and its answer was lost.
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
                check_current(lease, Lease(lease.run_id, owner, fence, 0.0))
                [(length,)] = await rows(
                    connection,
                    "SELECT coalesce(max(sequence), 0) FROM {schema}.entries WHERE run = %s",
                    (number,),
                )
                check_kept(lease, length, after=after)
                await rows(connection, _CUT, (number, after))
                fields = json.dumps(_fields(lease.run_id, summary))
                await rows(connection, _RESUMMARIZE, (number, key, fields))

        await self._do(truncate)

    # How it talks to the server.

    def _explained(self, error: Exception) -> str:
        return _explained(error)

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
            async with self._pool.connection() as connection:
                return await work(connection)

        async def attempt_while_locked() -> A:
            deadline = time.monotonic() + self._statement_timeout
            delays = _LOCK_DELAYS.delays()
            while True:
                try:
                    return await attempt()
                except psycopg.errors.LockNotAvailable:
                    if time.monotonic() > deadline:
                        raise
                await asyncio.sleep(next(delays))

        return await self._ask(attempt_while_locked)


@dataclass(slots=True, eq=False)
class _Append:
    """An append that is queued or was sent.

    Attributes:
        is_unknown: whether it was sent without an answer, so that it may have been written.
        locked_until: when to give up, if another program has locked the run.
        answer: resolved with why the server refused it, or None once it is written.
    """

    lease: Lease
    bodies: list[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    takes: Sequence[int] = ()
    seen: int | None = None
    is_unknown: bool = False
    locked_until: float | None = None
    delays: Iterator[float] = field(default_factory=_LOCK_DELAYS.delays)
    answer: asyncio.Future[str | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> bytes:
        return key_of(self.lease.run_id)

    def row(self) -> tuple[Any, ...]:
        """Return the parameters of the server's function `append`."""
        lease = self.lease
        return (
            *(self.key, lease.owner, lease.fence, self.after, self.release),
            *(self._change(), self.bodies),
        )

    def _change(self) -> str | None:
        """Return what it changes besides the entries, if anything."""
        change: dict[str, Any] = {}
        if self.summary is not None:
            change |= _fields(self.lease.run_id, self.summary)
            if notifies_parent(self.summary):
                change["notifies"] = True
            if self.seen is not None:
                change["seen"] = self.seen
        if self.takes:
            change["takes"] = [*self.takes]
        return json.dumps(change) if change else None

    def changed(self) -> list[str]:
        """Return the runs that watchers want to know of, once it is written."""
        if self.summary is None:
            return []
        notified = [self.summary.parent] if notifies_parent(self.summary) else []
        return [self.lease.run_id, *notified]

    def end(self, refusal: str | None) -> None:
        """Resolve `answer`, unless its waiter was cancelled."""
        if not self.answer.done():
            self.answer.set_result(refusal)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if isinstance(error, StoreUnavailable | psycopg.Error):
            is_refused = isinstance(error, psycopg.Error)
            reason = f"the server refused it: {_explained(error)}" if is_refused else str(error)
            error = SaveFailed(self.lease.run_id, reason, is_unknown=self.is_unknown)
        if not self.answer.done():
            self.answer.set_exception(error)


class _Writer:
    """Sends appends on its own connection; those that queue up meanwhile are sent together.

    Parameters:
        announce: called with the runs that an append has changed.
        lock_timeout: how many seconds an append waits for a run that another program has locked.
    """

    def __init__(
        self,
        queries: Queries,
        connect: Callable[[], Awaitable[Connection]],
        persist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        announce: Callable[[Sequence[str]], None],
        *,
        lock_timeout: float,
    ) -> None:
        self._announce = announce
        self._queries = queries
        self._connect = connect
        self._persist = persist
        self._lock_timeout = lock_timeout
        self._own: Connection | None = None
        self._waiting: list[_Append] = []
        self._sending: list[_Append] = []
        self._locked: set[_Append] = set()
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, append: _Append) -> None:
        """Send this append with the next batch. Raise SaveFailed, LeaseLost or ValueError."""
        self._queue(append)
        refusal = await append.answer
        if refusal == "taken":
            check_messages(append.lease, append.takes, ())
        check_appended(append.lease, append.after, refusal)

    def _queue(self, append: _Append) -> None:
        self._waiting.append(append)
        self._has_waiting.set()

    async def connection(self) -> Connection:
        """Return the writer's own connection, or a new one if it was lost."""
        if self._own is None or self._own.closed:
            self._own = await self._connect()
        return self._own

    async def close(self) -> None:
        """Send all appends whose callers wait for an answer, and close the connection."""
        self._is_closing = True
        self._has_waiting.set()
        while not self._task.done():
            await asyncio.wait([self._task], timeout=_CLOSING_SECONDS)
            pending = (*self._sending, *self._waiting, *self._locked)
            if all(append.answer.done() for append in pending):
                self._task.cancel()
        if self._own is not None:
            await self._own.close()

    async def _work(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._sending = self._next_batch()
            if self._sending:
                await self._deliver(self._sending)
            elif self._is_closing and not self._locked:
                return
            else:
                self._has_waiting.clear()

    def _next_batch(self) -> list[_Append]:
        """Pop the oldest queued appends, up to the batch limits."""
        count = size = 0
        for append in self._waiting[:_APPENDS_PER_BATCH]:
            size += sum(map(len, append.bodies))
            if count and size > _BYTES_PER_BATCH:
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        return batch

    async def _deliver(self, batch: Sequence[_Append]) -> None:
        try:
            await self._persist(lambda: self._attempt(batch))
        except Exception as error:
            is_late = isinstance(error, psycopg.errors.QueryCanceled)
            if isinstance(error, psycopg.Error) and not is_late and len(batch) > 1:
                # One of them is the cause. But none of them alone is late, by waiting for a locked row.
                for append in batch:
                    await self._deliver([append])
                return
            # Also a defect: without this, their callers would wait for ever.
            for append in batch:
                append.fail(error)

    async def _attempt(self, batch: Sequence[_Append]) -> None:
        """Send the appends that have no answer yet. Called again after a lost connection."""
        # All programs lock in the same order, so that they cannot deadlock.
        todo = sorted((one for one in batch if not one.answer.done()), key=lambda one: one.key)
        if not todo:
            # Their callers were cancelled.
            return
        connection = await self.connection()
        try:
            refusals = await self._send(connection, todo)
        except psycopg.Error as error:
            # An ERROR says that nothing was written. A FATAL error, or none, does not say so.
            if error.diag.severity_nonlocalized != "ERROR":
                for append in todo:
                    append.is_unknown = True
            raise
        doubtful: list[tuple[_Append, str]] = []
        for append, refusal in zip(todo, refusals, strict=True):
            if refusal == "locked":
                self._send_later(append)
            elif refusal is not None and append.is_unknown:
                doubtful.append((append, refusal))
            else:
                self._end(append, refusal)
        for append, refusal in doubtful:
            # An earlier request may have written it, and may have been under way until now.
            self._end(append, None if await self._is_written(connection, append) else refusal)

    def _end(self, append: _Append, refusal: str | None) -> None:
        append.end(refusal)
        if refusal is None:
            self._announce(append.changed())

    def _send_later(self, append: _Append) -> None:
        """Queue an append again after a delay, because another program has locked its run."""
        now = time.monotonic()
        if append.locked_until is None:
            append.locked_until = now + self._lock_timeout
        if now > append.locked_until:
            reason = "another program has locked its row in the table `leases` or `runs`"
            append.fail(SaveFailed(append.lease.run_id, reason, is_unknown=append.is_unknown))
        else:
            self._locked.add(append)
            delay = next(append.delays)
            asyncio.get_running_loop().call_later(delay, self._queue_again, append)

    def _queue_again(self, append: _Append) -> None:
        self._locked.discard(append)
        self._queue(append)

    async def _send(self, connection: Connection, todo: Sequence[_Append]) -> list[str | None]:
        """Return why each append was refused, or None for each that was written."""
        rows: list[Any] = []
        if len(todo) == 1:
            rows = await self._queries.rows(connection, _APPEND, todo[0].row())
        elif todo:
            *columns, bodies = map(list, zip(*(append.row() for append in todo), strict=True))
            columns += [[*map(len, bodies)], [body for part in bodies for body in part]]
            rows = await self._queries.rows(connection, _APPEND_ALL, columns)
        return [refusal for (refusal,) in rows]

    async def _is_written(self, connection: Connection, append: _Append) -> bool:
        """Return whether an append whose answer was lost was written: only it has used its fence."""
        rows = await self._queries.rows(
            connection,
            "SELECT body FROM {schema}.entries JOIN {schema}.runs ON run = number"
            " WHERE key = %s AND sequence > %s AND sequence <= %s ORDER BY sequence",
            (append.key, append.after, append.after + len(append.bodies)),
        )
        if append.bodies:
            return [bytes(body) for (body,) in rows] == append.bodies
        released = await self._queries.rows(
            connection,
            "SELECT 1 FROM {schema}.leases WHERE key = %s AND fence = %s AND owner = ''",
            (append.key, append.lease.fence),
        )
        return append.release and bool(released)


class _Renewals:
    """Renews leases from any thread, on a connection of its own.

    Parameters:
        timeout: how many seconds a renewal may take, with a new connection if one is needed.
    """

    def __init__(self, parameters: dict[str, Any], queries: Queries, *, timeout: float) -> None:
        self._parameters: dict[str, Any] = {**parameters, "connect_timeout": math.ceil(timeout)}
        self._queries = queries
        self._timeout = timeout
        self._connection: _BoundedConnection | None = None
        self._using = threading.Lock()
        self._is_closed = False

    def rows(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        """Return the rows of a statement, which is repeated once after a lost connection."""
        deadline = time.monotonic() + self._timeout
        if not self._using.acquire(timeout=self._timeout):
            raise psycopg.OperationalError("another renewal takes too long")
        try:
            try:
                return self._attempt(statement, parameters, deadline)
            except psycopg.OperationalError as error:
                if not _is_lost(error) or time.monotonic() >= deadline:
                    raise
                return self._attempt(statement, parameters, deadline)
        finally:
            self._using.release()
            if self._is_closed:
                self.close()

    def _attempt(self, statement: str, parameters: Sequence[Any], deadline: float) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = _BoundedConnection.connect(**self._parameters)
                self._connection.deadline = deadline
                self._connection.execute(_set_timeout("statement", self._timeout))
                lock_timeout = min(_RENEWAL_LOCK_SECONDS, self._timeout)
                self._connection.execute(_set_timeout("lock", lock_timeout))
            self._connection.deadline = deadline
            text = self._queries.text(statement)
            return self._connection.execute(text, parameters, binary=True).fetchall()
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.OperationalError:
            # Also if it is only late: its answer must not be taken for that of the next statement.
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection. A renewal that is under way does it at its end."""
        self._is_closed = True
        if self._using.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._using.release()


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection on which no statement waits for the server beyond `deadline`."""

    deadline = math.inf

    def wait(self, gen: PQGen[A], *args: Any, **options: Any) -> A:
        return super().wait(self._until_deadline(gen), *args, **options)

    def _until_deadline(self, gen: PQGen[A]) -> PQGen[A]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if time.monotonic() > self.deadline:
                    raise psycopg.OperationalError("the server did not answer in time")
                wanted = gen.send(ready)
        except StopIteration as stop:
            return stop.value


def _parsed(dsn: str) -> dict[str, Any]:
    try:
        parameters = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        parameters = None
    # A password that contains a / is parsed as the port, and the driver would show it.
    if parameters is None or not _are_ports(parameters.get("port")):
        raise ValueError(
            "the connection string of the PostgreSQL server cannot be parsed. Write "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %XX for special characters in the "
            "password, such as %2F for /"
        )
    return {"connect_timeout": _CONNECT_SECONDS, **parameters, "autocommit": True}


def _are_ports(text: object) -> bool:
    return text is None or all(port.isdecimal() or not port for port in str(text).split(","))


def _is_lost(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    gave_up = psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable
    return isinstance(error, psycopg.OperationalError) and not isinstance(error, gave_up)


def _explained(error: Exception) -> str:
    gone = psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction
    if isinstance(error, gone | psycopg.errors.InvalidSchemaName):
        return (
            f"{error}. Its tables are gone, with all runs. Restore the database from a backup, or open "
            "the store again, which creates them anew"
        )
    return str(error)


def _set_timeout(what: Literal["statement", "lock"], seconds: float) -> sql.Composed:
    name = sql.Identifier(f"{what}_timeout")
    return sql.SQL("SET {} = {}").format(name, round(seconds * 1000))


def _fields(run_id: str, summary: RunSummary) -> dict[str, Any]:
    """Return what the server's function `summarize` needs."""
    fields = summary_fields(summary)
    escapes = {name: escaped(fields[name]) for name in ESCAPED_FIELDS}
    parent_key = "\\x" + key_of(summary.parent).hex()
    return {
        **fields,
        **escapes,
        "status": str(summary.status),
        "run_id": escaped(run_id),
        "parent_key": parent_key,
    }


@contextmanager
def _as_save_failed(run_id: str) -> Generator[None]:
    """Raise SaveFailed instead of StoreUnavailable. A request that was lost may have been executed."""
    try:
        yield
    except StoreUnavailable as error:
        raise SaveFailed(run_id, str(error), is_unknown=True) from error


_RUN_ID, _CREATED_AT, _NOW = 0, 5, -1

_APPEND = """
    SELECT {schema}.append(%b::bytea, %s::text, %s::bigint, %s::bigint, %s::bool,
                           %s::text::jsonb, %b::bytea[])
"""

_APPEND_ALL = """
    SELECT * FROM {schema}.append_all(%b::bytea[], %s::text[], %s::bigint[], %s::bigint[],
                                      %s::bool[], %s::text[]::jsonb[], %s::int[], %b::bytea[])
"""

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
"""The runs after the one with a time of creation and an id, newest first."""
