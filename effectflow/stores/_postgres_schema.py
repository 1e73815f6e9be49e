"""The tables and functions of a PostgresStore, how they are migrated, and how they are queried."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, LiteralString

from psycopg import AsyncConnection, AsyncCursor, sql

from effectflow.checkpoint.errors import UnsupportedVersion

_LOCK = 0x45464657
"""The advisory lock under which one program at a time changes the schema ("EFFW")."""

_MIGRATIONS = (
    """
    CREATE TABLE {schema}.runs (
        number bigint PRIMARY KEY,
        key bytea NOT NULL UNIQUE,
        run_id text NOT NULL,
        workflow text NOT NULL,
        kind text NOT NULL,
        version text NOT NULL,
        status text NOT NULL,
        created_at double precision NOT NULL,
        dead_letters bigint NOT NULL
    );
    CREATE INDEX runs_newest_first ON {schema}.runs (created_at DESC, number);
    -- `run` is the number of its lease. A foreign key would cost a lookup and a lock for each entry.
    CREATE TABLE {schema}.entries (
        run bigint NOT NULL,
        sequence bigint NOT NULL,
        written_at double precision NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, sequence)
    );
    -- Of each run that is claimed or has entries. `number` is the run's, so an append finds it here.
    CREATE TABLE {schema}.leases (
        key bytea PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        owner text NOT NULL,
        fence bigint NOT NULL,
        expires_at double precision NOT NULL,
        expires_at_uptime double precision
    );
    -- One counter for all runs, so that a deleted run leaves nothing behind.
    CREATE SEQUENCE {schema}.fences;

    CREATE FUNCTION {schema}.now() RETURNS double precision LANGUAGE sql AS
        'SELECT extract(epoch FROM clock_timestamp())::double precision';

    -- Takes the lease if it was released, is the claimant's own, or has the fence of a lease that the
    -- claimant knows to be free. Returns the lease as it is then.
    CREATE FUNCTION {schema}.claim(
        run bytea, claimant text, seconds double precision, uptime double precision,
        free_fence bigint
    ) RETURNS SETOF {schema}.leases LANGUAGE plpgsql AS $$
    DECLARE held {schema}.leases;
    BEGIN
        LOOP
            INSERT INTO {schema}.leases (key, owner, fence, expires_at) VALUES (run, '', 0, 0)
                ON CONFLICT DO NOTHING;
            SELECT * INTO held FROM {schema}.leases WHERE key = run FOR UPDATE;
            -- Not found if a deletion came in between.
            EXIT WHEN FOUND;
        END LOOP;
        IF held.owner IN ('', claimant) OR held.fence = free_fence THEN
            RETURN QUERY UPDATE {schema}.leases
                SET owner = claimant, fence = nextval('{schema}.fences'),
                    expires_at = {schema}.now() + seconds, expires_at_uptime = uptime
                WHERE key = run RETURNING *;
        ELSE
            RETURN NEXT held;
        END IF;
    END $$;

    -- Keeps the row while the run has entries, for its number.
    CREATE FUNCTION {schema}.release(run bytea, claimant text, lease_fence bigint) RETURNS void
    LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE {schema}.leases SET owner = ''
            WHERE key = run AND fence = lease_fence AND owner = claimant;
        DELETE FROM {schema}.leases WHERE key = run AND fence = lease_fence AND owner = ''
            AND NOT EXISTS (SELECT FROM {schema}.runs WHERE runs.key = run);
    END $$;

    -- Returns null, or why it was refused: `held` by an owner, `released`, `gone`, the `length` of the
    -- journal if that is another one, `unsummarized`, or `locked`.
    CREATE FUNCTION {schema}.append(
        run_key bytea, claimant text, lease_fence bigint, after bigint, release bool, summary jsonb,
        bodies bytea[]
    ) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        held {schema}.leases;
        length bigint;
    BEGIN
        -- Does not wait for another program that has locked the row, because the other appends of the
        -- statement would wait, too.
        SELECT * INTO held FROM {schema}.leases WHERE key = run_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            IF EXISTS (SELECT FROM {schema}.leases WHERE key = run_key) THEN
                RETURN 'locked';
            END IF;
            RETURN CASE WHEN after > 0 THEN 'gone' ELSE 'released' END;
        ELSIF held.owner <> '' AND (held.fence <> lease_fence OR held.owner <> claimant) THEN
            RETURN 'held ' || held.owner;
        END IF;
        -- A statement after the lock, so that it sees what others wrote before us.
        SELECT coalesce(max(sequence), 0) INTO length
            FROM {schema}.entries WHERE run = held.number;
        IF length <> after THEN
            RETURN 'length ' || length;
        ELSIF held.owner = '' THEN
            RETURN 'released';
        ELSIF length = 0 AND summary IS NULL THEN
            RETURN 'unsummarized';
        END IF;
        IF summary IS NOT NULL THEN
            IF length > 0 THEN
                PERFORM FROM {schema}.runs WHERE number = held.number FOR UPDATE SKIP LOCKED;
                IF NOT FOUND AND EXISTS (SELECT FROM {schema}.runs WHERE number = held.number) THEN
                    RETURN 'locked';
                END IF;
            END IF;
            INSERT INTO {schema}.runs
                (number, key, run_id, workflow, kind, version, status, created_at, dead_letters)
            VALUES (held.number, run_key, summary->>'run_id', summary->>'workflow',
                    summary->>'kind', summary->>'version', summary->>'status',
                    (summary->>'created_at')::double precision,
                    (summary->>'dead_letters')::bigint)
            ON CONFLICT (number) DO UPDATE SET
                workflow = excluded.workflow, kind = excluded.kind, version = excluded.version,
                status = excluded.status, created_at = excluded.created_at,
                dead_letters = excluded.dead_letters;
        END IF;
        INSERT INTO {schema}.entries
            SELECT held.number, after + place, {schema}.now(), body
            FROM unnest(bodies) WITH ORDINALITY AS new (body, place);
        IF release THEN
            UPDATE {schema}.leases SET owner = '' WHERE key = run_key;
        END IF;
        RETURN NULL;
    END $$;

    -- One append for each element of the arrays; `bodies` is the bodies of all, concatenated.
    CREATE FUNCTION {schema}.append_all(
        keys bytea[], claimants text[], fences bigint[], afters bigint[], releases bool[],
        summaries jsonb[], counts int[], bodies bytea[]
    ) RETURNS SETOF text LANGUAGE plpgsql AS $$
    DECLARE written int := 0;
    BEGIN
        FOR i IN 1 .. cardinality(keys) LOOP
            RETURN NEXT {schema}.append(keys[i], claimants[i], fences[i], afters[i], releases[i],
                                        summaries[i], bodies[written + 1 : written + counts[i]]);
            written := written + counts[i];
        END LOOP;
    END $$;
    """,
)
"""The statements from each version to the next. They never change once they are released."""


async def migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Create or migrate the schema. Raise UnsupportedVersion if it is newer than this effectflow.

    If there is nothing to do, this needs no privilege to create anything.
    """

    async def execute(statement: LiteralString, *parameters: object) -> AsyncCursor[Any]:
        text = sql.SQL(statement).format(schema=sql.Identifier(schema))
        return await connection.execute(text, parameters or None)

    async with connection.transaction():
        await execute("SELECT pg_advisory_xact_lock(%s)", _LOCK)
        # A query first: IF NOT EXISTS needs the privilege to create schemas even if this one exists.
        found = await execute("SELECT FROM pg_namespace WHERE nspname = %s", schema)
        if not found.rowcount:
            await execute("CREATE SCHEMA {schema}")
        tables = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'schema_version'"
        found = await execute(tables, schema)
        if not found.rowcount:
            await execute("CREATE TABLE {schema}.schema_version (version int)")
        newest = await execute("SELECT coalesce(max(version), 0) FROM {schema}.schema_version")
        [version] = await newest.fetchone() or [0]
        if version > len(_MIGRATIONS):
            raise UnsupportedVersion(f"schema {schema!r}", version, len(_MIGRATIONS))
        for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
            await execute(statements)
            await execute("INSERT INTO {schema}.schema_version VALUES (%s)", number)


def key_of(run_id: str) -> bytes:
    """Return what a run is found by. An index entry has a limited length."""
    return hashlib.sha256(run_id.encode()).digest()


def escaped(text: str) -> str:
    """Return the text without the zero character, which PostgreSQL does not accept."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescaped(text: str) -> str:
    """Return the text that was `escaped`."""
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


class Queries:
    """Executes statements in which `{schema}` stands for the schema of a store."""

    def __init__(self, schema: str) -> None:
        self._schema = sql.Identifier(schema).as_string(None)

    def text(self, statement: str) -> bytes:
        """Return the statement as it is sent to the server."""
        return statement.replace("{schema}", self._schema).encode()

    async def rows(
        self, connection: AsyncConnection[Any], statement: str, parameters: Sequence[Any]
    ) -> list[Any]:
        """Return the rows of a statement."""
        cursor = await connection.execute(self.text(statement), parameters, binary=True)
        return await cursor.fetchall()
