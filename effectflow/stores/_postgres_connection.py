"""The connection of a PostgresStore to its server: connection strings, statements, and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import psycopg
from psycopg import conninfo, sql

from effectflow.checkpoint.store import RunSummary
from effectflow.stores._summaries import summary_fields

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_CONNECT_SECONDS = 10

CLOSING_SECONDS = 1.0
"""How long closing the store waits for answers that no caller waits for any more."""

ESCAPED_FIELDS = ("workflow", "version", "waits_for", "blocked", "parent")
"""The fields of a summary that are stored `escaped`."""


def key_of(run_id: str) -> bytes:
    """Return the key of a run in indexes, where run ids could be too long."""
    return hashlib.sha256(run_id.encode()).digest()


def escaped(text: str) -> str:
    """Return the text without the zero character, which PostgreSQL does not accept."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescaped(text: str) -> str:
    """Return the original of an `escaped` text."""
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


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


def fields_of(run_id: str, summary: RunSummary) -> dict[str, Any]:
    """Return the arguments of the server's function `summarize`."""
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
