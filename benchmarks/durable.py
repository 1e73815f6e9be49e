"""What a durable step costs on SQLite, against raw sqlite3 committing one row, in one process.

    python benchmarks/durable.py

The floor commits one small row a transaction on a connection with the same pragmas (WAL,
synchronous=FULL). A step is one commit of two rows by way of the writer's thread, so the two hops
between threads, the encoding and the checks of the lease and of the sequence come on top.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from counting import App, count_to, increment

from effectflow import Checkpoints, Do, SqliteStore, fail, workflow
from effectflow.checkpoint import CheckpointPolicy

ROUNDS = 5


@workflow
def count_and_fail(steps: int) -> Do[App, str, int]:
    number = 0
    for _ in range(steps):
        number = yield from increment(number)
    return (yield from fail("stop here"))


def raw_commits(path: Path, commits: int) -> float:
    """Seconds for each commit of one row."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB)")
    began = time.perf_counter()
    for _ in range(commits):
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO rows (body) VALUES (?)", (b"x" * 100,))
        database.execute("COMMIT")
    seconds = (time.perf_counter() - began) / commits
    database.close()
    return seconds


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def one_run(path: Path, steps: int) -> float:
    """Seconds for each step of one run."""
    async with SqliteStore(path) as store:
        app = App(Checkpoints(store))
        return await seconds(lambda: count_to.start(steps).run_or_raise(app)) / steps


async def many_runs(path: Path, runs: int, steps: int) -> float:
    """Steps a second of many runs at once."""
    async with SqliteStore(path) as store:
        app = App(Checkpoints(store))

        async def all_of_them() -> None:
            async with anyio.create_task_group() as group:
                for _ in range(runs):
                    group.start_soon(count_to.start(steps).run_or_raise, app)

        return runs * steps / await seconds(all_of_them)


async def resume_after(path: Path, steps: int) -> float:
    """Seconds to resume a run that failed after this many steps, up to the same failure."""
    async with SqliteStore(path) as store:
        app = App(Checkpoints(store))
        await count_and_fail.start(steps, run_id="r").run(app)
        return await seconds(lambda: count_and_fail.resume("r").run(app))


async def start_again(path: Path, steps: int) -> float:
    """Seconds to start a complete run of this many steps again, which yields its output."""
    async with SqliteStore(path, durability="process") as store:
        app = App(Checkpoints(store, policy=CheckpointPolicy(every_steps=1000)))
        await count_to.start(steps, run_id="r").run_or_raise(app)
        again = [
            await seconds(lambda: count_to.start(steps, run_id="r").run_or_raise(app))
            for _ in range(20)
        ]
        return min(again)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios: list[float] = []
        for number in range(ROUNDS):
            # Disks change their mind from one second to the next: measured in pairs.
            floor = raw_commits(folder / f"raw{number}.db", 1000)
            mine = anyio.run(one_run, folder / f"one{number}.db", 1000)
            ratios.append(floor / mine)
            print(
                f"raw commit {floor * 1e6:5.0f} us, step {mine * 1e6:5.0f} us, {floor / mine:4.0%}"
            )
        print(
            f"one run of 1,000 steps: {statistics.median(ratios):.0%} of the floor (to reach: 65%)"
        )

        best = max(anyio.run(many_runs, folder / f"many{n}.db", 200, 20) for n in range(ROUNDS))
        print(f"200 runs of 20 steps: {best:,.0f} steps/s (to reach: 15,000)")

        costs = {
            steps: min(
                anyio.run(one_run, folder / f"flat{steps}.{n}.db", steps)
                for n in range(ROUNDS if steps < 10_000 else 2)
            )
            for steps in (100, 1_000, 10_000)
        }
        for steps, cost in costs.items():
            relative = cost / costs[1_000] - 1
            print(f"cost of a step at {steps:>6,} steps: {cost * 1e6:4.0f} us ({relative:+.0%})")

        resumes = [anyio.run(resume_after, folder / f"resume{n}.db", 1_000) for n in range(ROUNDS)]
        print(f"resume after 1,000 steps: {min(resumes) * 1e3:.1f} ms (to reach: 30)")

        short = anyio.run(start_again, folder / "short.db", 10)
        long = anyio.run(start_again, folder / "long.db", 100_000)
        print(
            f"start of a complete run of 100,000 steps: {long * 1e3:.2f} ms, {long / short:.2f} times "
            "that of one of 10 steps (to reach: 3)"
        )


if __name__ == "__main__":
    main()
