"""The connections of a PostgresStore: connection strings, statements, errors, and renewals."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

from effectflow.checkpoint.lease import Lease, uptime
from effectflow.stores._postgres_schema import Dialect, adapt
from effectflow.stores._sql import Attempt, Ended, Query, Reading, Rows, advance, key_of

A = TypeVar("A")

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_CONNECT_SECONDS = 10

_SECONDS_OF_ANSWER = 5.0
"""How much longer than a statement may last its answer may take."""

_RENEWAL_LOCK_SECONDS = 0.5
"""How long a lease that another program has locked may delay the renewal of other leases."""

CLOSING_SECONDS = 1.0
"""How long closing the store waits for answers that no caller waits for any more."""


class Queries:
    """Executes statements in the SQL of `_sql` in the tables of a schema.

    Parameters:
        statement_timeout: the seconds after which the server cancels a statement; 0 for never. One that
            says nothing a little later is lost.
    """

    def __init__(self, dialect: Dialect, statement_timeout: float) -> None:
        self.text = dialect.text
        self._seconds = statement_timeout + _SECONDS_OF_ANSWER if statement_timeout else None

    async def rows(
        self, connection: Connection, statement: str, parameters: Sequence[object] = ()
    ) -> list[Any]:
        """Return the rows of a statement, which is a transaction of its own."""
        with self._answering(connection):
            # Prepared at once: they are few, and to plan one takes longer than to execute it.
            cursor = await connection.execute(
                self.text(statement), parameters, prepare=True, binary=True
            )
        return await cursor.fetchall() if cursor.description else []

    @contextmanager
    def _answering(self, connection: Connection) -> Generator[None]:
        """Cut the connection, as if it was lost, if the server does not answer in time."""
        if self._seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self._seconds, _cut, connection)
        try:
            yield
        finally:
            timer.cancel()

    async def read(self, connection: Connection, reading: Reading[A]) -> A:
        """Return what a reading returns."""
        steps, answers = reading(), None
        while not isinstance(step := advance(steps, answers), Ended):
            answers = await self._all(connection, step)
        return step.result

    async def change(self, connection: Connection, attempt: Attempt[A]) -> A:
        """Perform a transaction, and return its result."""
        steps, answers = attempt(), None
        try:
            while not isinstance(step := advance(steps, answers), Ended):
                if answers is None:
                    _, *answers = await self._all(connection, [_BEGIN, *step])
                else:
                    answers = await self._all(connection, step)
            commit = step.result
            if answers is None and len(commit.changes) == 1:
                await self._all(connection, commit.changes)
            else:
                begin = [_BEGIN] if answers is None else []
                await self._all(connection, [*begin, *commit.changes, COMMIT])
            return commit.result
        except BaseException:
            with suppress(psycopg.Error):
                await connection.rollback()
            raise

    async def within(
        self,
        connection: Connection,
        attempt: Attempt[A],
        *,
        then: Sequence[Query] = (),
        prepare: bool | None = False,
    ) -> A:
        """Perform the statements of a transaction, and those of `then`, in one that has begun.

        The connection may be that of a user, with other settings than those of the store. After an error,
        one on which statements were prepared (`prepare`) is of no use: the driver may take some for
        prepared that were skipped.
        """
        commit = await self.read_of_user(connection, attempt, prepare=prepare)
        await self._rows_of_user(connection, [*commit.changes, *then], prepare)
        return commit.result

    async def read_of_user(
        self, connection: Connection, reading: Reading[A], *, prepare: bool | None = False
    ) -> A:
        """Return what a reading returns, on the connection of a user."""
        steps, answers = reading(), None
        while not isinstance(step := advance(steps, answers), Ended):
            answers = await self._rows_of_user(connection, step, prepare)
        return step.result

    async def _rows_of_user(
        self, connection: Connection, queries: Sequence[Query], prepare: bool | None
    ) -> list[Rows]:
        # Not by `connection.execute`: users choose what their cursors are, and what rows they return.
        cursors = [psycopg.AsyncCursor(connection, row_factory=tuple_row) for _ in queries]
        with self._answering(connection):
            async with connection.pipeline():
                for cursor, (text, parameters) in zip(cursors, queries, strict=True):
                    adapt(cursor.adapters)
                    await cursor.execute(
                        self.text(text), parameters or None, prepare=prepare, binary=True
                    )
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]

    async def _all(self, connection: Connection, queries: Sequence[Query]) -> list[Rows]:
        """Return the rows of each query, after one round trip."""
        if len(queries) == 1:
            return [await self.rows(connection, *queries[0])]
        with self._answering(connection):
            async with connection.pipeline():
                cursors = [
                    await connection.execute(self.text(text), parameters or None, binary=True)
                    for text, parameters in queries
                ]
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _cut(connection: Connection) -> None:
    # A cancellation would ask the server to cancel the statement, and wait for that.
    own = socket.socket(fileno=connection.fileno())
    try:
        own.shutdown(socket.SHUT_RDWR)
    finally:
        own.detach()


_BEGIN = Query("BEGIN")
COMMIT = Query("COMMIT")


_UNKNOWN_OPTION = re.compile(r'invalid URI query parameter: "(\w+)"')


def parsed(dsn: str) -> dict[str, Any]:
    try:
        parameters = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        parameters, unknown = None, _UNKNOWN_OPTION.search(str(error))
        # In `host=h password=my key=1`, this may be a part of the password.
        if unknown is not None and "://" in dsn:
            raise ValueError(
                "the connection string of the PostgreSQL server has an option that the driver does not "
                f"know: {unknown[1]}"
            ) from None
    # A password that contains a / is parsed as the port, and the driver would show it.
    if parameters is None or not _are_ports(parameters.get("port")):
        raise ValueError(
            "the connection string of the PostgreSQL server cannot be parsed. Write "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %XX for special characters in the "
            "password, such as %2F for /"
        )
    return {"connect_timeout": _CONNECT_SECONDS, **parameters, "autocommit": True}


def location_of(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the host, port and database of a connection string, as far as it names them."""
    named = {"host": "host", "hostaddr": "host", "port": "port", "dbname": "database"}
    found = {name: str(parameters[key]) for key, name in named.items() if parameters.get(key)}
    # A password that contains a @ is parsed as part of the host or the database.
    return {} if any("@" in part for part in found.values()) else found


def _are_ports(text: object) -> bool:
    return text is None or all(port.isdecimal() or not port for port in str(text).split(","))


def is_lost(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    gave_up = psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable
    return isinstance(error, psycopg.OperationalError) and not isinstance(error, gave_up)


def is_refusal(error: psycopg.Error) -> bool:
    """Return whether the server has said that nothing was written."""
    # An ERROR says so. A FATAL error, or none, does not.
    return error.diag.severity_nonlocalized == "ERROR"


def explained(error: Exception) -> str:
    gone = psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction
    if isinstance(error, gone | psycopg.errors.InvalidSchemaName):
        return (
            f"{error}. Its tables are gone, with all runs. Restore the database from a backup, or open "
            "the store again, which creates them again"
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "another program has locked the row of the run in the table `runs`"
    return str(error)


def settings(*, statement_timeout: float, lock_timeout: float = 0.0) -> bytes:
    """Return the statements with which a connection begins. The timeouts are seconds, 0 for none."""
    # Not through `options`, which would replace those of the connection string.
    values = {
        "statement_timeout": round(statement_timeout * 1000),
        "lock_timeout": round(lock_timeout * 1000),
        "default_transaction_isolation": "read committed",
        # All statements use indexes, and are planned once. A plan that was made while there were few
        # runs is kept when there are many.
        "plan_cache_mode": "force_generic_plan",
        **dict.fromkeys(("enable_seqscan", "enable_bitmapscan"), "off"),
        **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "jit"), "off"),
    }
    return "; ".join(f"SET {name} = '{value}'" for name, value in values.items()).encode()


class Renewals:
    """Renews leases from any thread, on its own connection.

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

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Renew leases, as `CheckpointStore.renew`. Repeat it once after a lost connection."""
        deadline = time.monotonic() + self._timeout
        if not self._using.acquire(timeout=self._timeout):
            raise psycopg.OperationalError("another renewal takes too long")
        try:
            try:
                return self._attempt(leases, seconds, deadline)
            except psycopg.OperationalError as error:
                if not is_lost(error) or time.monotonic() >= deadline:
                    raise
                return self._attempt(leases, seconds, deadline)
        finally:
            self._using.release()
            if self._is_closed:
                self.close()

    def _attempt(self, leases: Sequence[Lease], seconds: float, deadline: float) -> list[Lease]:
        """Renew leases. Those that others have locked for long are returned as they are: they are
        current, and cannot be claimed."""
        patience = min(deadline, time.monotonic() + _RENEWAL_LOCK_SECONDS)
        up = uptime()
        until = None if up is None else up + seconds
        renewed: dict[int, Lease] = {}
        left = dict(enumerate(leases))
        while left:
            asked, wanted = [*left], [*left.values()]
            rows: list[tuple[int, float]] = self._rows(_RENEW, wanted, deadline, seconds, until)
            for place, expires_at in rows:
                lease = left.pop(asked[place - 1])
                renewed[asked[place - 1]] = Lease(
                    lease.run_id, lease.owner, lease.fence, expires_at, until
                )
            if left:
                asked, wanted = [*left], [*left.values()]
                current: list[tuple[int]] = self._rows(_CURRENT, wanted, deadline)
                left = {asked[place - 1]: wanted[place - 1] for (place,) in current}
                if time.monotonic() >= patience:
                    renewed |= left
                    break
                time.sleep(0.01)
        return [renewed[index] for index in sorted(renewed)]

    def _rows(
        self, statement: str, leases: Sequence[Lease], deadline: float, *parameters: float | None
    ) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = _BoundedConnection.connect(**self._parameters)
                adapt(self._connection.adapters)
                self._connection.deadline = deadline
                self._connection.execute(settings(statement_timeout=self._timeout))
            self._connection.deadline = deadline
            keys = [key_of(lease.run_id) for lease in leases]
            owners, fences = [lease.owner for lease in leases], [lease.fence for lease in leases]
            text = self._queries.text(statement)
            cursor = self._connection.execute(
                text, (keys, owners, fences, *parameters), binary=True
            )
            return cursor.fetchall()
        except psycopg.OperationalError:
            # Even if the answer is only late, because the next statement must not receive it.
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection after the renewal in progress, if there is one."""
        self._is_closed = True
        if self._using.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._using.release()


_WANTED = """
    FROM unnest(%b::bytea[], %b::text[], %b::bigint[]) WITH ORDINALITY
        AS wanted (key, owner, fence, place)
    JOIN @runs USING (key, owner, fence)
"""

_RENEW = f"""
    WITH ready AS MATERIALIZED (SELECT number, place {_WANTED} FOR UPDATE OF runs SKIP LOCKED)
    UPDATE @runs SET expires_at = now() + %b::float8, expires_at_uptime = %b::float8
    FROM ready WHERE runs.number = ready.number RETURNING place, expires_at
"""
"""Leaves out leases that are not current, and those of runs that another program has locked."""

_CURRENT = f"SELECT place {_WANTED}"


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
