"""What a durable step costs on PostgreSQL, against bare psycopg, and against DBOS on the same server.

    pip install -e '.[postgres]' --group benchmarks
    python benchmarks/postgres.py

The floor inserts one small row and commits, one after another, on a connection as psycopg opens it:
`execute`, then `commit`. A second floor is one statement that commits itself (autocommit), without a
transaction that is opened and closed. A step is one round trip that inserts two entries and checks lease
and sequence; on a disk that commits in a fraction of a millisecond, what it costs beyond the floor is
mostly processor time on both sides. DBOS runs the same number of workflows with the same number of steps;
both engines write every step before the next one starts.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import psycopg
from counting import App, count_to
from servers import postgres_server

from effectflow import Checkpoints
from effectflow.stores import PostgresStore

ROUNDS = 9
STEPS = 300
RUNS, STEPS_OF_EACH = 200, 20


async def bare_commits(dsn: str, commits: int, *, autocommit: bool) -> float:
    """Seconds for each row that psycopg inserts and commits."""
    insert = "INSERT INTO rows (body) VALUES (%s)"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as connection:
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS rows (number bigserial PRIMARY KEY, body bytea)"
        )
        await connection.commit()
        began = time.perf_counter()
        for _ in range(commits):
            await connection.execute(insert, (b"x" * 100,))
            if not autocommit:
                await connection.commit()
        return (time.perf_counter() - began) / commits


async def one_run(dsn: str, steps: int) -> float:
    """Seconds for each step of one run."""
    async with PostgresStore(dsn) as store:
        app = App(Checkpoints(store))
        await count_to.start(2).run_or_raise(app)
        began = time.perf_counter()
        await count_to.start(steps).run_or_raise(app)
        return (time.perf_counter() - began) / steps


async def many_runs(dsn: str, runs: int, steps: int) -> float:
    """Steps a second of many runs at once."""
    async with PostgresStore(dsn) as store:
        app = App(Checkpoints(store))
        await count_to.start(2).run_or_raise(app)
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(runs):
                group.start_soon(count_to.start(steps).run_or_raise, app)
        return runs * steps / (time.perf_counter() - began)


def dbos_workflow(dsn: str) -> Any:
    """The same workflow in DBOS, launched."""
    dbos: Any = importlib.import_module("dbos")
    dbos.DBOS(config={"name": "bench", "system_database_url": dsn, "log_level": "ERROR"})

    @dbos.DBOS.step()
    async def dbos_increment(number: int) -> int:
        return number + 1

    @dbos.DBOS.workflow()
    async def dbos_count_to(steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await dbos_increment(number)
        return number

    dbos.DBOS.launch()
    return dbos_count_to


async def many_runs_of_dbos(count: Any, runs: int, steps: int) -> float:
    """Steps a second of many runs of DBOS at once."""
    await count(2)
    began = time.perf_counter()
    await asyncio.gather(*(count(steps) for _ in range(runs)))
    return runs * steps / (time.perf_counter() - began)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, postgres_server(Path(name)) as dsn:
        try:
            ratios: list[tuple[float, float]] = []
            for _ in range(ROUNDS):
                floor = asyncio.run(bare_commits(dsn, STEPS, autocommit=False))
                statement = asyncio.run(bare_commits(dsn, STEPS, autocommit=True))
                mine = asyncio.run(one_run(dsn, STEPS))
                ratios.append((floor / mine, statement / mine))
                print(
                    f"insert and commit {floor * 1e6:5.0f} us, autocommit {statement * 1e6:5.0f} us, "
                    f"step {mine * 1e6:5.0f} us"
                )
            of_commits, of_statements = (statistics.median(of) for of in zip(*ratios, strict=True))
            print(f"one run: {of_commits:.0%} of bare psycopg (to reach: 70%)")
            print(f"one run: {of_statements:.0%} of one statement that commits itself")

            count = dbos_workflow(dsn)
            speeds: list[tuple[float, float]] = []
            for _ in range(3):
                peer = asyncio.run(many_runs_of_dbos(count, RUNS, STEPS_OF_EACH))
                mine = asyncio.run(many_runs(dsn, RUNS, STEPS_OF_EACH))
                speeds.append((mine, peer))
                print(f"{RUNS} runs: {mine:,.0f} steps/s, DBOS {peer:,.0f} steps/s")
            ratio = statistics.median(mine / peer for mine, peer in speeds)
            print(f"{RUNS} runs of {STEPS_OF_EACH} steps: {ratio:.1f} times DBOS (to reach: 5)")
        finally:
            importlib.import_module("dbos").DBOS.destroy()


if __name__ == "__main__":
    main()
