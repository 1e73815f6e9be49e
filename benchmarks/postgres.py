"""What a durable step costs on PostgreSQL, against bare psycopg. `compare.py` measures its peers.

    pip install -e '.[postgres]' --group dev
    python benchmarks/postgres.py

The floor inserts one small row and commits, one after another, on a connection as psycopg opens it:
`execute`, then `commit`. A second floor is one statement that commits itself (autocommit), without a
transaction that is opened and closed. A step is one round trip that inserts two entries and checks lease
and sequence; on a disk that commits in a fraction of a millisecond, what it costs beyond the floor is
mostly processor time on both sides.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import psycopg
from counting import App, count_to
from servers import postgres_server

from effectflow import Checkpoints
from effectflow.stores import PostgresStore

ROUNDS = 9
STEPS = 300


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


def main() -> None:
    with tempfile.TemporaryDirectory() as name, postgres_server(Path(name)) as dsn:
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


if __name__ == "__main__":
    main()
