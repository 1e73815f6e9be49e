"""The connections of a PostgresStore: connection strings, statements, errors, and renewals."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.abc import PQGen

from effectflow.checkpoint.lease import Lease, uptime
from effectflow.stores._postgres_schema import Dialect, adapt
from effectflow.stores._sql import Attempt, Ended, Query, Reading, Rows, advance, key_of

A = TypeVar("A")

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_CONNECT_SECONDS = 10

_RENEWAL_LOCK_SECONDS = 0.5
"""How long a lease that another program has locked may delay the renewal of other leases."""

CLOSING_SECONDS = 1.0
"""How long closing the store waits for answers that no caller waits for any more."""


class Queries:
    """Executes statements in the SQL of `_sql` in the tables of a schema."""

    def __init__(self, dialect: Dialect) -> None:
        self.text = dialect.text

    async def rows(
        self, connection: Connection, statement: str, parameters: Sequence[object] = ()
    ) -> list[Any]:
        """Return the rows of a statement, which is a transaction of its own."""
        cursor = await connection.execute(self.text(statement), parameters, binary=True)
        return await cursor.fetchall() if cursor.description else []

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
                await self._all(connection, [*begin, *commit.changes, _COMMIT])
            return commit.result
        except BaseException:
            with suppress(psycopg.Error):
                await connection.rollback()
            raise

    async def _all(self, connection: Connection, queries: Sequence[Query]) -> list[Rows]:
        """Return the rows of each query, after one round trip."""
        if len(queries) == 1:
            return [await self.rows(connection, *queries[0])]
        async with connection.pipeline():
            cursors = [
                await connection.execute(self.text(text), parameters or None, binary=True)
                for text, parameters in queries
            ]
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


_BEGIN = Query("BEGIN")
_COMMIT = Query("COMMIT")


def parsed(dsn: str) -> dict[str, Any]:
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


def set_timeout(what: Literal["statement", "lock"], seconds: float) -> sql.Composed:
    name = sql.Identifier(f"{what}_timeout")
    return sql.SQL("SET {} = {}").format(name, round(seconds * 1000))


class Renewals:
    """Renews leases from any thread, on its own connection.

    Parameters:
        timeout: how many seconds a renewal may take, with a new connection if one is needed.
    """

    def __init__(self, parameters: dict[str, Any], queries: Queries, *, timeout: float) -> None:
        self._parameters: dict[str, Any] = {**parameters, "connect_timeout": math.ceil(timeout)}
        self._text = queries.text(_RENEW)
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
        wanted = {key_of(lease.run_id): lease for lease in leases}
        renewed: dict[bytes, Lease] = {}
        patience = min(deadline, time.monotonic() + _RENEWAL_LOCK_SECONDS)
        while wanted:
            locked: dict[bytes, Lease] = {}
            for key, expires_at, expires_at_uptime in self._rows(wanted, seconds, deadline):
                lease = wanted[key]
                if expires_at is None:
                    locked[key] = lease
                else:
                    renewed[key] = replace(
                        lease, expires_at=expires_at, expires_at_uptime=expires_at_uptime
                    )
            wanted = locked
            if locked:
                if time.monotonic() >= patience:
                    renewed |= locked
                    break
                time.sleep(0.01)
        keys = (key_of(lease.run_id) for lease in leases)
        return [renewed[key] for key in keys if key in renewed]

    def _rows(self, wanted: Mapping[bytes, Lease], seconds: float, deadline: float) -> list[Any]:
        owners = [lease.owner for lease in wanted.values()]
        fences = [lease.fence for lease in wanted.values()]
        up = uptime()
        until = None if up is None else up + seconds
        try:
            if self._connection is None:
                self._connection = _BoundedConnection.connect(**self._parameters)
                adapt(self._connection.adapters)
                self._connection.deadline = deadline
                self._connection.execute(set_timeout("statement", self._timeout))
            self._connection.deadline = deadline
            parameters = ([*wanted], owners, fences, seconds, until)
            return self._connection.execute(self._text, parameters, binary=True).fetchall()
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


_RENEW = """
    WITH wanted AS MATERIALIZED (
        SELECT number, wanted.* FROM unnest(%b::bytea[], %b::text[], %b::bigint[])
            AS wanted (key, owner, fence)
        JOIN @runs USING (key, owner, fence)
    ), ready AS MATERIALIZED (
        SELECT number FROM wanted JOIN @runs USING (number, owner, fence)
        FOR UPDATE OF runs SKIP LOCKED
    ), renewed AS (
        UPDATE @runs SET expires_at = now() + %b::float8, expires_at_uptime = %b::float8
        FROM ready WHERE runs.number = ready.number
        RETURNING runs.number, runs.expires_at, runs.expires_at_uptime
    )
    SELECT key, expires_at, expires_at_uptime FROM wanted LEFT JOIN renewed USING (number)
"""
"""Leaves out leases that are not current. Returns no time for a run that another program has locked."""


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
