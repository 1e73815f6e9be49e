"""How the stores find due runs among many that wait, and how they notice changes after an outage."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import psycopg
import pytest
import redis as driver

from effectflow import stores
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.run_info import RunStatus, RunSummary
from effectflow.checkpoint.store import Changes, Claimed, DueRuns, Queue, ServiceStore
from tests.stores.servers import PostgresServer, RedisServer, RestartingPostgres

pytestmark = pytest.mark.anyio

SUSPENDED = RunSummary("w", RunStatus.SUSPENDED, 0.0)
FAR = time.time() + 10 * 86400
WAITING = 3000
"""Enough that reading an index is cheaper than reading a table."""

QUEUES = {"w": Queue("w", 100, per_second=1000)}


async def fill(store: ServiceStore) -> None:
    """Create suspended runs of several workflows and priorities, of which half wait for a time."""
    numbers = iter(range(WAITING))

    async def create() -> None:
        for number in numbers:
            summary = replace(
                SUSPENDED,
                workflow=f"w{number % 3 or ''}",
                due_at=FAR + number if number % 2 else None,
                priority=number % 5,
            )
            assert await store.create(f"r{number}", [b"1"], summary=summary)

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(create)


async def claim_due(store: ServiceStore, *workflows: str) -> Claimed:
    owners = [str(Owner.new()) for _ in range(10)]
    return await store.claim_due(DueRuns(frozenset(workflows), owners, 60, time.time(), QUEUES))


async def claim_twice(store: ServiceStore) -> None:
    """Claim when nothing is due, and when ten runs of two workflows are."""
    assert (await claim_due(store, "w", "w1")).runs == ()
    for number in range(10):
        summary = replace(
            SUSPENDED,
            status=RunStatus.PENDING,
            workflow=("w", "w1", "w2")[number % 3],
            due_at=1.0 + number,
            priority=number % 2,
        )
        assert await store.create(f"due{number}", [b"1"], summary=summary)
    claimed = await claim_due(store, "w", "w1")
    assert [one.info.run_id for one in claimed.runs] == [
        f"due{number}" for number in (1, 3, 7, 9, 0, 4, 6)
    ]
    assert claimed.next_due_at is not None


async def test_sqlite_claims_by_the_index_of_due_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Sequence[Any]]] = []

    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 10

    class Noting(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.set_progress_handler(count, 10)

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            asked.append((sql, parameters))
            return super().execute(sql, parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Noting)
    )
    async with stores.SqliteStore(tmp_path / "runs.db", durability="process") as store:
        await fill(store)
        asked.clear()
        steps = 0
        await claim_twice(store)
    # It would be four times this number if each lane was read to its end.
    assert 0 < steps < 10_000

    with connect(tmp_path / "runs.db") as database:
        database.create_function("now", 0, time.time)
        plans = [
            str(step[3])
            for sql, parameters in asked
            if "runs" in sql and "INSERT" not in sql
            for step in database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        ]
    database.close()
    assert any("runs_due" in plan for plan in plans)
    # The index of held runs has no others.
    scans = {plan for plan in plans if plan.startswith("SCAN runs")}
    assert scans <= {"SCAN runs USING INDEX runs_held"}


async def test_postgres_claims_by_the_index_of_due_times(postgres: str) -> None:
    name = f"due{time.time_ns()}"
    named = f"{postgres}&application_name={name}"
    async with stores.PostgresStore(named, schema=name) as store:
        await fill(store)
    before = await read_rows(postgres, name)
    async with stores.PostgresStore(named, schema=name) as store:
        await claim_twice(store)
    after = await read_rows(postgres, name)

    read = {table: rows - before[table] for table, rows in after.items()}
    assert read["runs"] > 0
    assert max(read.values()) < WAITING / 10


async def read_rows(postgres: str, name: str) -> dict[str, int]:
    """Return how many rows of each table of a store were read, with an index or without one."""
    with psycopg.connect(postgres) as connection:
        # Connections report what they have read before they are gone.
        named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        with anyio.fail_after(30):
            while connection.execute(named, (name,)).fetchone() != (0,):
                await anyio.sleep(0.01)
                connection.rollback()
        rows = connection.execute(
            "SELECT relname, coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0)"
            " FROM pg_stat_user_tables WHERE schemaname = %s",
            (name,),
        ).fetchall()
    return dict(rows)


async def test_redis_claims_by_sorted_sets_of_due_times(redis: str, tmp_path: Path) -> None:
    with driver.Redis.from_url(redis) as client:
        async with stores.RedisStore(redis, prefix=str(tmp_path)) as store:
            await fill(store)
            # The first claim after the start of a server looks at all runs once.
            await claim_due(store, "w")
            client.config_resetstat()
            await claim_twice(store)
        stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    reads = [stat["calls"] for name, stat in stats.items() if name.startswith("cmdstat_h")]
    assert 0 < sum(reads) < WAITING / 10


async def test_a_change_during_an_outage_of_postgres_is_noticed() -> None:
    with PostgresServer.with_own_data() as own:
        server = RestartingPostgres(own.url)
        store, other = (stores.PostgresStore(own.url, reconnect_timeout=60) for _ in range(2))
        await notices_after(store, other, server.kill, server.start)


async def test_a_change_during_an_outage_of_redis_is_noticed(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        store, other = (stores.RedisStore(server.url, reconnect_timeout=60) for _ in range(2))
        await notices_after(store, other, server.kill, server.start)


async def notices_after(
    store: ServiceStore,
    other: ServiceStore,
    kill: Callable[[], None],
    start: Callable[[], None],
) -> None:
    """The watcher learns that any run may have changed, and hears of each change again."""
    async with store, other, store.changes() as changes:
        assert await other.create("r", [b"1"], summary=SUSPENDED)
        await hears(changes, "r")
        for number in range(2):
            kill()
            start()
            await anything_may_have_changed(changes)
            await other.send("r", "signal:go", key=str(number))
            await hears(changes, "r")


async def anything_may_have_changed(changes: Changes) -> None:
    with anyio.fail_after(60):
        while await changes.wait(60) is not None:
            pass


async def hears(changes: Changes, run_id: str) -> None:
    with anyio.fail_after(60):
        while run_id not in (await changes.wait(60) or ()):
            pass
