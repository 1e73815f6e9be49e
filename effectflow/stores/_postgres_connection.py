"""The connections of a PostgresStore: connection strings, statements, errors, and renewals."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.abc import PQGen

A = TypeVar("A")

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_CONNECT_SECONDS = 10

_RENEWAL_LOCK_SECONDS = 0.5
"""How long a lease that another program has locked may delay the renewal of other leases."""

CLOSING_SECONDS = 1.0
"""How long closing the store waits for answers that no caller waits for any more."""


class Queries:
    """Executes statements in which `{schema}` stands for the schema of a store."""

    def __init__(self, schema: str) -> None:
        self._schema = sql.Identifier(schema).as_string(None)

    def text(self, statement: str) -> bytes:
        """Return the statement as it is sent to the server."""
        return statement.replace("{schema}", self._schema).encode()

    async def rows(
        self, connection: Connection, statement: str, parameters: Sequence[Any]
    ) -> list[Any]:
        """Return the rows of a statement."""
        cursor = await connection.execute(self.text(statement), parameters, binary=True)
        return await cursor.fetchall()


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


def explained(error: Exception) -> str:
    gone = psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction
    if isinstance(error, gone | psycopg.errors.InvalidSchemaName):
        return (
            f"{error}. Its tables are gone, with all runs. Restore the database from a backup, or open "
            "the store again, which creates them again"
        )
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
                if not is_lost(error) or time.monotonic() >= deadline:
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
                self._connection.execute(set_timeout("statement", self._timeout))
                lock_timeout = min(_RENEWAL_LOCK_SECONDS, self._timeout)
                self._connection.execute(set_timeout("lock", lock_timeout))
            self._connection.deadline = deadline
            text = self._queries.text(statement)
            return self._connection.execute(text, parameters, binary=True).fetchall()
        except psycopg.errors.LockNotAvailable:
            raise
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
