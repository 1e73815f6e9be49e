"""The tables of a PostgresStore, their migrations, and what its statements and texts look like there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from effectflow.checkpoint.errors import UnsupportedVersion
from effectflow.stores._postgres_arrays import adapt_arrays, escaped
from effectflow.stores._sql import SCHEMA, Query, Steps

_LOCK = 0x45464657
"""The advisory lock ("EFFW") that lets only one program at a time change the schema."""

_UNRELEASED = 5
"""The versions before the first release. Their schemas are rejected."""

_TYPES = {
    "number INTEGER PRIMARY KEY": "number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "run_id TEXT": 'run_id TEXT COLLATE "C"',
    "turn TEXT": 'turn TEXT COLLATE "C"',
    "INTEGER": "bigint",
    "REAL": "double precision",
    "BLOB": "bytea",
}

_CLOCK = """
    CREATE FUNCTION @now() RETURNS double precision LANGUAGE sql AS
        'SELECT extract(epoch FROM clock_timestamp())::double precision';
"""

_MIGRATIONS = (SCHEMA + _CLOCK,)
"""The statements from each version to the next. They never change once they are released."""


class Dialect:
    """Translates the statements of `_sql` for PostgreSQL.

    Parameters:
        schema: the schema of the tables.
    """

    def __init__(self, schema: str) -> None:
        if not 0 < len(schema.encode()) <= 63 or "\0" in schema or "%" in schema:
            raise ValueError(
                f"schema must be a name of 1 to 63 bytes without % and zero characters, not {schema!r}"
            )
        self._prefix = f"{sql.Identifier(schema).as_string(None)}."
        self.text = lru_cache(512)(self._text)

    def _text(self, statement: str) -> bytes:
        """Return the statement as the driver takes it."""
        return (
            statement.replace("@now()", "now()")
            .replace("now()", "@now()")
            .replace("instr(", "strpos(")
            .replace("?", "%b")
            # Last, because a name may have any of these.
            .replace("@", self._prefix)
            .encode()
        )

    def migration(self, statements: str) -> bytes:
        """Return statements that create tables."""
        for type_, here in _TYPES.items():
            statements = statements.replace(type_, here)
        return self._text(statements)


async def migrate(connection: AsyncConnection[Any], schema: str, dialect: Dialect) -> None:
    """Create or migrate the schema. Raise UnsupportedVersion if a newer effectflow made it, or one
    from before the first release.

    If there is nothing to do, this needs no privilege to create anything.
    """

    async def execute(statement: str, *parameters: object) -> AsyncCursor[Any]:
        return await connection.execute(dialect.text(statement), parameters or None)

    async with connection.transaction():
        await execute("SELECT pg_advisory_xact_lock(?)", _LOCK)
        # A query first: IF NOT EXISTS needs the privilege to create schemas even if this one exists.
        found = await execute("SELECT FROM pg_namespace WHERE nspname = ?", schema)
        if not found.rowcount:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        tables = "SELECT FROM pg_tables WHERE schemaname = ? AND tablename = 'schema_version'"
        found = await execute(tables, schema)
        if not found.rowcount:
            await execute("CREATE TABLE @schema_version (version int)")
        found = await execute("SELECT coalesce(max(version), 0) FROM @schema_version")
        [version] = await found.fetchone() or [0]
        newest = _UNRELEASED + len(_MIGRATIONS)
        if version > newest or 0 < version <= _UNRELEASED:
            raise UnsupportedVersion(f"schema {schema!r}", version, newest)
        done = max(version - _UNRELEASED, 0)
        for number, statements in enumerate(_MIGRATIONS[done:], _UNRELEASED + done + 1):
            await connection.execute(dialect.migration(statements))
            await execute("INSERT INTO @schema_version VALUES (?)", number)


def facts_of(schema: str) -> Steps[tuple[int, int]]:
    """Return the layout of a schema, and the bytes that its tables take."""
    [layout, size] = yield [
        Query("SELECT max(version) FROM @schema_version"),
        Query(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = ?",
            (schema,),
        ),
    ]
    return layout[0][0], size[0][0]


# Texts without the zero character, which PostgreSQL does not accept, in the same order.


def _unescaped(text: str) -> str:
    return text.replace("\1\1", "\0").replace("\1\2", "\1")


class _EscapingDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(escaped(obj))


class _UnescapingLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        text = str(super().load(data))
        return _unescaped(text) if "\1" in text else text


def adapt(adapters: AdaptersMap) -> None:
    """Make a connection convert texts and numbers as the store needs them."""
    adapters.register_dumper(str, _EscapingDumper)
    adapters.register_loader("text", _UnescapingLoader)
    adapt_arrays(adapters)
    # One type for all numbers, so that each statement is prepared once.
    adapters.register_dumper(int, Int8BinaryDumper)
