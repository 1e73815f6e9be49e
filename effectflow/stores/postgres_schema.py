"""The tables and functions of a PostgreSQL store, and how they are brought up to date."""

from __future__ import annotations

from psycopg import AsyncConnection, sql

from effectflow.checkpoint.errors import UnsupportedVersion

__all__ = ["migrate"]

_LOCK = 0x45464657
"""The advisory lock under which one program at a time changes the schema ("EFFW")."""

_MIGRATIONS = (
    """
    CREATE TABLE {schema}.runs (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key bytea NOT NULL UNIQUE,
        run_id text NOT NULL,
        workflow text NOT NULL,
        kind text NOT NULL,
        version text NOT NULL,
        status text NOT NULL,
        created_at double precision NOT NULL
    );
    CREATE INDEX runs_newest_first ON {schema}.runs (created_at DESC, number);
    CREATE TABLE {schema}.entries (
        run bigint NOT NULL REFERENCES {schema}.runs ON DELETE CASCADE,
        sequence bigint NOT NULL,
        written_at double precision NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, sequence)
    );
    -- Kept when its run is deleted: a stale writer must not pass for the owner of a new one.
    CREATE TABLE {schema}.leases (
        key bytea PRIMARY KEY,
        owner text NOT NULL,
        fence bigint NOT NULL,
        expires_at double precision NOT NULL
    );

    CREATE FUNCTION {schema}.now() RETURNS double precision LANGUAGE sql AS
        'SELECT extract(epoch FROM clock_timestamp())::double precision';

    -- Takes the lease if it is free, expired, the owner's own, or has the fence of a dead owner.
    -- Gives the lease as it is then.
    CREATE FUNCTION {schema}.claim(
        run bytea, claimant text, seconds double precision, dead_fence bigint
    ) RETURNS SETOF {schema}.leases LANGUAGE plpgsql AS $$
    DECLARE held {schema}.leases;
    BEGIN
        INSERT INTO {schema}.leases VALUES (run, '', 0, 0) ON CONFLICT DO NOTHING;
        SELECT * INTO held FROM {schema}.leases WHERE key = run FOR UPDATE;
        IF held.owner IN ('', claimant) OR held.fence = dead_fence
           OR held.expires_at <= {schema}.now() THEN
            RETURN QUERY UPDATE {schema}.leases
                SET owner = claimant, fence = fence + 1, expires_at = {schema}.now() + seconds
                WHERE key = run RETURNING *;
        ELSE
            RETURN NEXT held;
        END IF;
    END $$;

    -- One append for each element of the arrays; `bodies` has those of all, one after another.
    -- Gives for each why it was refused, or null.
    CREATE FUNCTION {schema}.append(
        keys bytea[], fences bigint[], afters bigint[], counts int[], releases bool[],
        summaries jsonb[], bodies bytea[]
    ) RETURNS SETOF text LANGUAGE plpgsql AS $$
    DECLARE
        held {schema}.leases;
        run_number bigint;
        length bigint;
        written int := 0;
        at double precision := {schema}.now();
        summary jsonb;
    BEGIN
        FOR i IN 1 .. cardinality(keys) LOOP
            SELECT * INTO held FROM {schema}.leases WHERE key = keys[i] FOR UPDATE;
            SELECT number INTO run_number FROM {schema}.runs WHERE key = keys[i];
            SELECT coalesce(max(sequence), 0) INTO length
                FROM {schema}.entries WHERE run = run_number;
            summary := summaries[i];
            IF held.fence IS DISTINCT FROM fences[i] OR held.owner = '' THEN
                RETURN NEXT 'it is held by ' || coalesce(nullif(held.owner, ''), 'nobody');
            ELSIF length <> afters[i] THEN
                RETURN NEXT format('its journal has %s entries, not %s', length, afters[i]);
            ELSIF run_number IS NULL AND summary IS NULL THEN
                RETURN NEXT 'no summary';
            ELSE
                IF summary IS NOT NULL THEN
                    INSERT INTO {schema}.runs
                        (key, run_id, workflow, kind, version, status, created_at)
                    VALUES (keys[i], summary->>'run_id', summary->>'workflow', summary->>'kind',
                            summary->>'version', summary->>'status',
                            (summary->>'created_at')::double precision)
                    ON CONFLICT (key) DO UPDATE SET
                        workflow = excluded.workflow, kind = excluded.kind,
                        version = excluded.version, status = excluded.status,
                        created_at = excluded.created_at
                    RETURNING number INTO run_number;
                END IF;
                INSERT INTO {schema}.entries
                    SELECT run_number, afters[i] + k, at, bodies[written + k]
                    FROM generate_series(1, counts[i]) AS k;
                IF releases[i] THEN
                    UPDATE {schema}.leases SET owner = '' WHERE key = keys[i];
                END IF;
                RETURN NEXT NULL;
            END IF;
            written := written + counts[i];
        END LOOP;
    END $$;
    """,
)
"""The statements that lead from each version to the next. What stands here is never changed."""


async def migrate(connection: AsyncConnection[object], schema: str) -> None:
    """Make the schema, or bring it up to date. Fails with UnsupportedVersion if it is newer."""
    name = sql.Identifier(schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        await connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {}.schema_version (version int)").format(name)
        )
        cursor = await connection.execute(
            sql.SQL("SELECT coalesce(max(version), 0) FROM {}.schema_version").format(name)
        )
        row: object = await cursor.fetchone()
        version = row[0] if isinstance(row, tuple) and isinstance(row[0], int) else 0
        if version > len(_MIGRATIONS):
            raise UnsupportedVersion(f"schema {schema!r}", version, len(_MIGRATIONS))
        for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
            await connection.execute(sql.SQL(statements).format(schema=name))
            await connection.execute(
                sql.SQL("INSERT INTO {}.schema_version VALUES (%s)").format(name), (number,)
            )
