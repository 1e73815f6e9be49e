"""How PostgreSQL is connected to and asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from psycopg import AsyncConnection, ProgrammingError, conninfo, sql
from psycopg_pool import AsyncConnectionPool

__all__ = ["Connecting", "Connection", "Pool", "Queries"]

Connection: TypeAlias = AsyncConnection[Any]
Pool: TypeAlias = AsyncConnectionPool[Connection]

_SECONDS_TO_CONNECT = 10


class Connecting:
    """Makes connections to one database, singly and in a pool.

    Parameters:
        dsn: a connection string. Nothing of it is in an error or a log, as it may have a password.
        statement_timeout: seconds after which the server gives a statement up.

    Raises ValueError for a connection string that cannot be read.
    """

    def __init__(self, dsn: str, *, statement_timeout: float) -> None:
        self._parameters = _parsed(dsn)
        self._statement_timeout = statement_timeout

    async def connect(self) -> Connection:
        """One connection, or the error that says why there is none."""
        connection = await AsyncConnection.connect(**self._parameters)
        await self._configure(connection)
        return connection

    def pool(self, size: int, *, patience: float) -> Pool:
        """A pool of so many connections at most, yet to be opened; each is waited for so many seconds."""
        return AsyncConnectionPool(
            kwargs=self._parameters,
            configure=self._configure,
            min_size=1,
            max_size=size,
            open=False,
            timeout=patience,
        )

    async def _configure(self, connection: Connection) -> None:
        # Not by `options`, which would take the place of those that the connection string brings.
        milliseconds = round(self._statement_timeout * 1000)
        await connection.execute(sql.SQL("SET statement_timeout = {}").format(milliseconds))


def _parsed(dsn: str) -> dict[str, Any]:
    try:
        parameters = conninfo.conninfo_to_dict(dsn)
    except ProgrammingError:
        parameters = None
    # A password with a / in it ends up as the port, which the driver would show.
    if parameters is None or not _are_ports(parameters.get("port")):
        raise ValueError(
            "the connection string of the PostgreSQL server cannot be read. Write "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %XX for special characters of the "
            "password, such as %2F for /"
        )
    return {"connect_timeout": _SECONDS_TO_CONNECT, **parameters, "autocommit": True}


def _are_ports(text: object) -> bool:
    return text is None or all(port.isdecimal() or not port for port in str(text).split(","))


class Queries:
    """Asks for rows, with statements in which `{schema}` stands for a schema."""

    def __init__(self, schema: str) -> None:
        self._schema = sql.Identifier(schema)
        self._texts: dict[str, bytes] = {}

    async def rows(
        self, connection: Connection, statement: str, parameters: Sequence[Any]
    ) -> list[Any]:
        text = self._texts.get(statement)
        if text is None:
            composed = sql.SQL(statement).format(schema=self._schema)  # pyright: ignore[reportArgumentType]  # all of them literal
            text = self._texts[statement] = composed.as_bytes(None)
        cursor = await connection.execute(text, parameters, binary=True)
        return await cursor.fetchall()
