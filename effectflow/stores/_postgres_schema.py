"""The tables and functions of a PostgresStore, their migrations, and the form of texts in them."""

from __future__ import annotations

import hashlib
from typing import Any, LiteralString

from psycopg import AsyncConnection, AsyncCursor, sql

from effectflow.checkpoint.errors import UnsupportedVersion
from effectflow.checkpoint.store import AT_ONCE_SINCE, RunSummary
from effectflow.stores._summaries import summary_fields

_LOCK = 0x45464657
"""The advisory lock ("EFFW") that lets only one program at a time change the schema."""

_UNRELEASED = 1
"""The versions before the first release. Their schemas are rejected."""

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
        dead_letters bigint NOT NULL,
        due_at double precision,
        priority bigint NOT NULL,
        waits_for text NOT NULL,
        blocked text NOT NULL,
        parent text NOT NULL,
        parent_key bytea NOT NULL,
        is_nested bool NOT NULL
    );
    CREATE INDEX runs_newest_first ON {schema}.runs (created_at DESC, number);
    CREATE INDEX runs_due ON {schema}.runs (workflow, status, priority, due_at)
        WHERE due_at IS NOT NULL AND NOT is_nested;
    -- `run` is the number of its lease. A foreign key would cost a lookup and a lock for each entry.
    CREATE TABLE {schema}.entries (
        run bigint NOT NULL,
        sequence bigint NOT NULL,
        written_at double precision NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, sequence)
    );
    -- One for each run that is claimed or has entries. `number` is that of the run, so that an append
    -- finds it here.
    CREATE TABLE {schema}.leases (
        key bytea PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        owner text NOT NULL,
        fence bigint NOT NULL,
        expires_at double precision NOT NULL,
        expires_at_uptime double precision
    );
    CREATE INDEX leases_held ON {schema}.leases (key) WHERE owner <> '';
    -- Messages that were not taken. Numbers are assigned under a lock on the run, so they grow.
    CREATE TABLE {schema}.messages (
        run bigint NOT NULL,
        number bigint GENERATED ALWAYS AS IDENTITY,
        topic text NOT NULL,
        key text NOT NULL,
        sent_at double precision NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, number)
    );
    -- All messages to runs that have not ended, taken or not, except notices: a digest of the topic and
    -- the key, and the request that sent the message.
    CREATE TABLE {schema}.received (
        run bigint NOT NULL,
        message bytea NOT NULL,
        request uuid NOT NULL,
        PRIMARY KEY (run, message)
    );
    -- When runs of workflows with a limit were started: the latest, as many as the limit needs.
    CREATE TABLE {schema}.limits (
        workflow text PRIMARY KEY,
        starts double precision[] NOT NULL
    );
    -- One counter for all runs, so that a deleted run leaves nothing behind.
    CREATE SEQUENCE {schema}.fences;

    CREATE FUNCTION {schema}.now() RETURNS double precision LANGUAGE sql AS
        'SELECT extract(epoch FROM clock_timestamp())::double precision';

    -- Takes the lease if it was released, belongs to the claimant, or has the fencing token of a lease
    -- that the claimant knows to be free. Returns the lease that is then valid.
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

    -- Writes the summary of a run, new or not. `change` also has what follows from it.
    CREATE FUNCTION {schema}.summarize(run bigint, run_key bytea, change jsonb) RETURNS void
    LANGUAGE sql AS $$
        INSERT INTO {schema}.runs
            (number, key, run_id, workflow, kind, version, status, created_at, dead_letters, due_at,
             priority, waits_for, blocked, parent, parent_key, is_nested)
        SELECT run, run_key, new.* FROM jsonb_to_record(change) AS new (
            run_id text, workflow text, kind text, version text, status text,
            created_at double precision, dead_letters bigint, due_at double precision,
            priority bigint, waits_for text, blocked text, parent text, parent_key bytea,
            is_nested bool)
        ON CONFLICT (number) DO UPDATE SET
            workflow = excluded.workflow, kind = excluded.kind, version = excluded.version,
            status = excluded.status, created_at = excluded.created_at,
            dead_letters = excluded.dead_letters, due_at = excluded.due_at,
            priority = excluded.priority, waits_for = excluded.waits_for,
            blocked = excluded.blocked, parent = excluded.parent,
            parent_key = excluded.parent_key, is_nested = excluded.is_nested;
    $$;

    -- Puts a message into the mailbox of a run whose row is locked.
    CREATE FUNCTION {schema}.put(receiver bigint, about text, message_key text, content bytea)
    RETURNS void LANGUAGE sql AS $$
        INSERT INTO {schema}.messages (run, topic, key, sent_at, body)
            VALUES (receiver, about, message_key, {schema}.now(), content);
        UPDATE {schema}.runs SET due_at = least(due_at, {schema}.now() - {at_once_since})
            WHERE number = receiver AND NOT is_nested AND (
                status = 'suspended' OR (about = 'cancel' AND status IN ('pending', 'failed')));
    $$;

    -- Notifies the parent of a run, and the runs that the parent is nested in. Returns the ids of the
    -- notified runs.
    CREATE FUNCTION {schema}.notify(outer_key bytea, run_id text) RETURNS text[]
    LANGUAGE plpgsql AS $$
    DECLARE
        receiver {schema}.runs;
        told text[];
    BEGIN
        LOOP
            SELECT * INTO receiver FROM {schema}.runs WHERE key = outer_key FOR UPDATE;
            EXIT WHEN NOT FOUND OR receiver.status IN ('completed', 'cancelled');
            PERFORM {schema}.put(receiver.number, 'notice', run_id, '');
            told := told || receiver.run_id;
            EXIT WHEN NOT receiver.is_nested;
            outer_key := receiver.parent_key;
            run_id := receiver.run_id;
        END LOOP;
        RETURN told;
    END $$;

    -- Locks the runs that `notify` notifies. Returns whether another transaction has locked one of them.
    CREATE FUNCTION {schema}.are_locked(outer_key bytea) RETURNS bool LANGUAGE plpgsql AS $$
    DECLARE receiver {schema}.runs;
    BEGIN
        LOOP
            SELECT * INTO receiver FROM {schema}.runs WHERE key = outer_key FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN EXISTS (SELECT FROM {schema}.runs WHERE key = outer_key);
            END IF;
            EXIT WHEN NOT receiver.is_nested OR receiver.status IN ('completed', 'cancelled');
            outer_key := receiver.parent_key;
        END LOOP;
        RETURN false;
    END $$;

    -- Answers `new`, `known`, `unknown` for an unknown run, or `ended` and how; and which runs around a
    -- nested run were notified. A notice has no digest.
    CREATE FUNCTION {schema}.send(
        run_key bytea, about text, message_key text, digest bytea, content bytea, request_id uuid,
        OUT answer text, OUT told text[]
    ) LANGUAGE plpgsql AS $$
    DECLARE receiver {schema}.runs;
    BEGIN
        SELECT * INTO receiver FROM {schema}.runs WHERE key = run_key FOR UPDATE;
        IF NOT FOUND THEN
            answer := 'unknown';
            RETURN;
        ELSIF receiver.status IN ('completed', 'cancelled') THEN
            answer := 'ended ' || receiver.status;
            RETURN;
        END IF;
        IF digest IS NOT NULL THEN
            INSERT INTO {schema}.received VALUES (receiver.number, digest, request_id)
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                -- Its own if the answer to an earlier attempt was lost.
                answer := CASE WHEN EXISTS (SELECT FROM {schema}.received
                    WHERE run = receiver.number AND message = digest AND request = request_id)
                    THEN 'new' ELSE 'known' END;
                RETURN;
            END IF;
        END IF;
        PERFORM {schema}.put(receiver.number, about, message_key, content);
        answer := 'new';
        IF receiver.is_nested THEN
            told := {schema}.notify(receiver.parent_key, receiver.run_id);
        END IF;
    END $$;

    -- Returns nothing if the run exists, and a lease without an owner if it was created. If a lease
    -- prevents that, returns it, unless it has the fencing token of a lease that the caller knows to be
    -- free.
    CREATE FUNCTION {schema}.create_run(
        run_key bytea, change jsonb, bodies bytea[], free_fence bigint
    ) RETURNS SETOF {schema}.leases LANGUAGE plpgsql AS $$
    DECLARE held {schema}.leases;
    BEGIN
        LOOP
            INSERT INTO {schema}.leases (key, owner, fence, expires_at) VALUES (run_key, '', 0, 0)
                ON CONFLICT DO NOTHING;
            SELECT * INTO held FROM {schema}.leases WHERE key = run_key FOR UPDATE;
            -- Not found if a deletion came in between.
            EXIT WHEN FOUND;
        END LOOP;
        IF EXISTS (SELECT FROM {schema}.runs WHERE number = held.number) THEN
            RETURN;
        ELSIF held.owner <> '' AND held.fence <> free_fence THEN
            RETURN NEXT held;
            RETURN;
        END IF;
        PERFORM {schema}.summarize(held.number, run_key, change);
        INSERT INTO {schema}.entries
            SELECT held.number, place, {schema}.now(), body
            FROM unnest(bodies) WITH ORDINALITY AS new (body, place);
        RETURN QUERY UPDATE {schema}.leases SET owner = '' WHERE key = run_key RETURNING *;
    END $$;

    -- Returns the leases of the runs of these workflows that were not released, and the time.
    CREATE FUNCTION {schema}.held(workflows text[]) RETURNS TABLE (
        workflow text, owner text, fence bigint, expires_at double precision,
        expires_at_uptime double precision, at double precision
    ) LANGUAGE sql
    -- Without statistics the planner takes nearly all leases for held, and would read all runs.
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
    SET enable_mergejoin = off AS $$
        WITH held AS MATERIALIZED (SELECT * FROM {schema}.leases WHERE owner <> '')
        SELECT runs.workflow, held.owner, held.fence, held.expires_at, held.expires_at_uptime,
               {schema}.now()
        FROM held JOIN {schema}.runs ON runs.key = held.key
        WHERE runs.workflow = ANY (workflows);
    $$;

    -- Returns runs that are due at a moment: for each workflow, status and priority, at most as many as
    -- the workflow has room for. They are free, or have the fencing token of a lease that the caller
    -- knows to be free. Also returns, without a run, when the next of the others are due.
    CREATE FUNCTION {schema}.due(
        workflows text[], rooms bigint[], rooms_for_pending bigint[], moment double precision,
        free_fences bigint[], lock_them bool
    ) RETURNS TABLE (due_run bigint, at double precision) LANGUAGE plpgsql
    -- A plan that was made while there were few runs is kept when there are many.
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
    SET enable_mergejoin = off AS $$
    DECLARE
        lane_workflow text;
        lane_status text;
        lane_priority bigint;
        room bigint;
    BEGIN
        FOR i IN 1 .. cardinality(workflows) LOOP
            lane_workflow := workflows[i];
            lane_status := '';
            lane_priority := 0;
            LOOP
                SELECT status, priority INTO lane_status, lane_priority FROM {schema}.runs
                    WHERE due_at IS NOT NULL AND NOT is_nested AND workflow = lane_workflow
                        AND (status, priority) > (lane_status, lane_priority)
                    ORDER BY status, priority LIMIT 1;
                EXIT WHEN NOT FOUND;
                room := CASE lane_status WHEN 'pending' THEN rooms_for_pending[i] ELSE rooms[i] END;
                IF room > 0 AND lock_them THEN
                    RETURN QUERY SELECT runs.number, runs.due_at FROM {schema}.runs
                        JOIN {schema}.leases ON leases.key = runs.key
                        WHERE due_at IS NOT NULL AND NOT is_nested AND workflow = lane_workflow
                            AND status = lane_status AND priority = lane_priority
                            AND due_at <= moment AND (owner = '' OR fence = ANY (free_fences))
                        ORDER BY due_at LIMIT room FOR UPDATE OF runs, leases SKIP LOCKED;
                ELSIF room > 0 THEN
                    RETURN QUERY SELECT runs.number, runs.due_at FROM {schema}.runs
                        JOIN {schema}.leases ON leases.key = runs.key
                        WHERE due_at IS NOT NULL AND NOT is_nested AND workflow = lane_workflow
                            AND status = lane_status AND priority = lane_priority
                            AND due_at <= moment AND (owner = '' OR fence = ANY (free_fences))
                        ORDER BY due_at LIMIT 1;
                END IF;
                RETURN QUERY SELECT NULL::bigint, min(due_at) FROM {schema}.runs
                    WHERE due_at IS NOT NULL AND NOT is_nested AND workflow = lane_workflow
                        AND status = lane_status AND priority = lane_priority AND due_at > moment;
            END LOOP;
        END LOOP;
    END $$;

    -- Claims, for these owners, the runs that `due` returns, in the order of their priorities and times.
    -- Returns them with the leases that they had before. Also returns, without a run, when the next of
    -- the others is due.
    CREATE FUNCTION {schema}.claim_due(
        workflows text[], statuses text[], moment double precision, free_fences bigint[],
        owners text[], seconds double precision, uptime double precision
    ) RETURNS TABLE (
        next_at double precision, run bigint, new_fence bigint, old_owner text, old_fence bigint,
        old_expires_at double precision, old_expires_at_uptime double precision
    ) LANGUAGE plpgsql AS $$
    DECLARE
        rooms bigint[] := array_fill(cardinality(owners)::bigint, ARRAY[cardinality(workflows)]);
        found bigint[];
    BEGIN
        SELECT array_agg(due_run), min(at) FILTER (WHERE due_run IS NULL) INTO found, next_at
            FROM {schema}.due(workflows, rooms, rooms, moment, free_fences, true);
        RETURN NEXT;
        -- A statement after the locks, so that it sees what others wrote before us.
        RETURN QUERY WITH chosen AS (
            SELECT leases.*, row_number() OVER (ORDER BY priority DESC, due_at) AS place
            FROM {schema}.runs JOIN {schema}.leases USING (key)
            WHERE runs.number = ANY (found) AND status = ANY (statuses)
            ORDER BY place LIMIT cardinality(owners)
        )
        UPDATE {schema}.leases SET owner = owners[place], fence = nextval('{schema}.fences'),
            expires_at = {schema}.now() + seconds, expires_at_uptime = uptime
        FROM chosen WHERE leases.key = chosen.key
        RETURNING NULL::double precision, leases.number, leases.fence, chosen.owner, chosen.fence,
            chosen.expires_at, chosen.expires_at_uptime;
    END $$;

    -- Returns null and the runs that were notified of its end, or why it was rejected: `held` by an
    -- owner, `released`, `gone`, the `length` of the journal if it is not `after`, `unsummarized`,
    -- `taken` if a message is gone, or `locked`. `change` is null, or has the new summary with the run's
    -- id, `takes`, `seen`, and whether it `notifies`.
    CREATE FUNCTION {schema}.append(
        run_key bytea, claimant text, lease_fence bigint, after bigint, release bool, change jsonb,
        bodies bytea[], OUT refusal text, OUT told text[]
    ) LANGUAGE plpgsql AS $$
    DECLARE
        held {schema}.leases;
        length bigint;
        taken bigint[];
    BEGIN
        -- Does not wait for another program that has locked the row, because the other appends of the
        -- statement would wait, too.
        SELECT * INTO held FROM {schema}.leases WHERE key = run_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            refusal := CASE
                WHEN EXISTS (SELECT FROM {schema}.leases WHERE key = run_key) THEN 'locked'
                WHEN after > 0 THEN 'gone'
                ELSE 'released' END;
            RETURN;
        ELSIF held.owner <> '' AND (held.fence <> lease_fence OR held.owner <> claimant) THEN
            refusal := 'held ' || held.owner;
            RETURN;
        END IF;
        -- A statement after the lock, so that it sees what others wrote before us.
        SELECT coalesce(max(sequence), 0) INTO length
            FROM {schema}.entries WHERE run = held.number;
        refusal := CASE
            WHEN length <> after THEN 'length ' || length
            WHEN held.owner = '' THEN 'released'
            WHEN length = 0 AND (change->'run_id') IS NULL THEN 'unsummarized' END;
        IF refusal IS NOT NULL THEN
            RETURN;
        END IF;
        IF change IS NOT NULL THEN
            IF length > 0 AND change ? 'run_id' THEN
                PERFORM FROM {schema}.runs WHERE number = held.number FOR UPDATE SKIP LOCKED;
                IF NOT FOUND AND EXISTS (SELECT FROM {schema}.runs WHERE number = held.number) THEN
                    refusal := 'locked';
                    RETURN;
                END IF;
            END IF;
            IF change ? 'notifies' AND {schema}.are_locked((change->>'parent_key')::bytea) THEN
                refusal := 'locked';
                RETURN;
            END IF;
            IF change ? 'takes' THEN
                taken := ARRAY(SELECT jsonb_array_elements_text(change->'takes')::bigint);
                IF (SELECT count(*) FROM {schema}.messages
                    WHERE run = held.number AND number = ANY (taken)) <> cardinality(taken)
                THEN
                    refusal := 'taken';
                    RETURN;
                END IF;
                DELETE FROM {schema}.messages WHERE run = held.number AND number = ANY (taken);
            END IF;
            IF change ? 'run_id' THEN
                PERFORM {schema}.summarize(held.number, run_key, change);
                IF change->>'status' IN ('completed', 'cancelled') THEN
                    DELETE FROM {schema}.messages WHERE run = held.number;
                    DELETE FROM {schema}.received WHERE run = held.number;
                ELSIF change ? 'seen' AND EXISTS (SELECT FROM {schema}.messages
                    WHERE run = held.number AND number > (change->>'seen')::bigint)
                THEN
                    UPDATE {schema}.runs SET due_at = least(due_at, {schema}.now() - {at_once_since})
                        WHERE number = held.number AND NOT is_nested;
                END IF;
            END IF;
            IF change ? 'notifies' THEN
                told := {schema}.notify((change->>'parent_key')::bytea, change->>'run_id');
            END IF;
        END IF;
        INSERT INTO {schema}.entries
            SELECT held.number, after + place, {schema}.now(), body
            FROM unnest(bodies) WITH ORDINALITY AS new (body, place);
        IF release THEN
            UPDATE {schema}.leases SET owner = '' WHERE key = run_key;
        END IF;
    END $$;

    -- One append for each element of the arrays; `bodies` is the bodies of all, concatenated.
    CREATE FUNCTION {schema}.append_all(
        keys bytea[], claimants text[], fences bigint[], afters bigint[], releases bool[],
        changes jsonb[], counts int[], bodies bytea[]
    ) RETURNS TABLE (refusal text, told text[]) LANGUAGE plpgsql AS $$
    DECLARE written int := 0;
    BEGIN
        FOR i IN 1 .. cardinality(keys) LOOP
            SELECT * INTO refusal, told FROM {schema}.append(
                keys[i], claimants[i], fences[i], afters[i], releases[i], changes[i],
                bodies[written + 1 : written + counts[i]]);
            RETURN NEXT;
            written := written + counts[i];
        END LOOP;
    END $$;
    """,
)
"""The statements from each version to the next. They never change once they are released."""


async def migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Create or migrate the schema. Raise UnsupportedVersion if a newer effectflow made it, or one
    from before the first release.

    If there is nothing to do, this needs no privilege to create anything.
    """

    async def execute(statement: LiteralString, *parameters: object) -> AsyncCursor[Any]:
        text = sql.SQL(statement).format(
            schema=sql.Identifier(schema), at_once_since=sql.Literal(AT_ONCE_SINCE)
        )
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
        found = await execute("SELECT coalesce(max(version), 0) FROM {schema}.schema_version")
        [version] = await found.fetchone() or [0]
        newest = _UNRELEASED + len(_MIGRATIONS)
        if version > newest or 0 < version <= _UNRELEASED:
            raise UnsupportedVersion(f"schema {schema!r}", version, newest)
        done = max(version - _UNRELEASED, 0)
        for number, statements in enumerate(_MIGRATIONS[done:], _UNRELEASED + done + 1):
            await execute(statements)
            await execute("INSERT INTO {schema}.schema_version VALUES (%s)", number)


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
