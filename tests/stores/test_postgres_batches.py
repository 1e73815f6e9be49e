"""Appends that PostgreSQL is sent together."""

from __future__ import annotations

import time

import anyio
import psycopg
import pytest
from psycopg import sql

from effectflow.checkpoint import Lease, Owner, RunStatus, RunSummary
from effectflow.stores import PostgresStore

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", "standard", "1", RunStatus.RUNNING, 0.0)

MEBIBYTE = 1024 * 1024


async def test_large_appends_do_not_all_go_in_one_statement(postgres: str) -> None:
    """A statement of a gibibyte is more than the server takes, and ends the connection."""
    schema, body = f"batches{time.time_ns()}", bytes(4 * MEBIBYTE)

    async def append(lease: Lease) -> None:
        await store.append(lease, [body], after=0, summary=SUMMARY)

    async with PostgresStore(postgres, schema=schema) as store:
        owner = str(Owner.new())
        leases = [await store.claim(f"r{n}", owner=owner, seconds=600) for n in range(16)]
        async with anyio.create_task_group() as group:
            for lease in leases:
                group.start_soon(append, lease)
    with psycopg.connect(postgres) as connection:
        entries = sql.SQL("SELECT xmin::text, sum(length(body)) FROM {}.entries GROUP BY xmin")
        sizes = [size for _, size in connection.execute(entries.format(sql.Identifier(schema)))]
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    assert sum(sizes) == 16 * len(body)
    assert max(sizes) <= 16 * MEBIBYTE
