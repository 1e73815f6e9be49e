"""A page of `find` on a store of many runs: each filter, with common, rare and no hits; and of `prune`.

    python benchmarks/finding.py [RUNS] [sqlite | postgres]

The goal is that a page of a hundred runs takes at most 50 ms, the first one and one from the middle, on
200,000 and on 1,000,000 runs, and that `prune` finds and deletes a page in that time. The exit
status is 1 if it is missed.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path

import anyio
import psycopg
from servers import postgres_server

from effectflow import RunQuery, RunStatus
from effectflow.checkpoint import CheckpointStore, RunSummary
from effectflow.runs.retention import ended_runs, prunable
from effectflow.stores import open_store
from effectflow.stores._sql import CREATED_COLUMNS, summary_columns

SIZES = 200_000, 1_000_000
GOAL = 50.0
ROUNDS = 5
NEWEST = 1_700_000_000.0

COMPLETED, FAILED, SUSPENDED, RUNNING, CANCELLED = (
    *(RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.SUSPENDED, RunStatus.RUNNING),
    RunStatus.CANCELLED,
)

Row = tuple[object, ...]
Insert = Callable[[str, Iterator[Row]], None]


def rows(runs: int) -> Iterator[Row]:
    """Yield the `CREATED_COLUMNS` of each run, the oldest first. One is created in each second."""
    for number in range(runs):
        created_at = NEWEST - runs + number
        rare = number < 20
        status = COMPLETED
        if number % 20 == 0:
            status = (FAILED, SUSPENDED, CANCELLED, FAILED)[number // 20 % 4]
        elif number % 1_000 == 1:
            status = RUNNING
        summary = RunSummary(
            "rare" if rare else f"w{min(number % 16, 9)}",
            RunStatus.INTERRUPTED if rare else status,
            created_at,
            parent="campaign" if number % 10 == 3 else f"run-{number // 10}" if number % 3 else "",
            tenant="large" if number % 2 else f"t{number % 1_000}",
        )
        run_id = f"old-{number}" if rare else f"{summary.workflow}@{number:07}"
        # Some were updated long after they were created.
        updated_at = created_at + (100_000 if number % 50 == 0 else 10)
        key = hashlib.sha256(run_id.encode()).digest()
        yield (key, run_id, *summary_columns(summary), updated_at, 1, 0, 0, "", 0, 0.0, None)


def queries(runs: int) -> dict[str, RunQuery]:
    failed, ended = frozenset({FAILED}), frozenset({COMPLETED, CANCELLED})
    oldest, middle = NEWEST - runs, NEWEST - runs / 2
    return {
        "all": RunQuery(),
        "id": RunQuery(run_id=f"w9@{runs - 1:07}"),
        "workflow": RunQuery(workflow="w9"),
        "workflow, rare": RunQuery(workflow="rare"),
        "workflow, unknown": RunQuery(workflow="unknown"),
        "status": RunQuery(statuses=failed),
        "statuses": RunQuery(statuses=ended),
        "status, rare": RunQuery(statuses=frozenset({RunStatus.INTERRUPTED})),
        "status, none": RunQuery(statuses=frozenset({RunStatus.BLOCKED})),
        "workflow and status": RunQuery(workflow="w4", statuses=failed),
        "workflow and status, none": RunQuery(workflow="w5", statuses=failed),
        "tenant": RunQuery(tenant="large"),
        "tenant, rare": RunQuery(tenant="t10"),
        "tenant, unknown": RunQuery(tenant="nobody"),
        "tenant and status, none": RunQuery(tenant="large", statuses=failed),
        "tenant and workflow": RunQuery(tenant="large", workflow="w3"),
        "parent": RunQuery(parent="campaign"),
        "parent, rare": RunQuery(parent="run-17"),
        "parent, unknown": RunQuery(parent="nobody"),
        "parent and status, none": RunQuery(parent="campaign", statuses=failed),
        "no parent": RunQuery(parent=""),
        "prefix": RunQuery(prefix="w9@"),
        "prefix, rare": RunQuery(prefix="old-"),
        "prefix, unknown": RunQuery(prefix="nothing"),
        "prefix and workflow": RunQuery(prefix="w4@", workflow="w4"),
        "since, all": RunQuery(updated_since=oldest),
        "since, the newest": RunQuery(updated_since=NEWEST - 1_000),
        "since, none": RunQuery(updated_since=NEWEST + 200_000),
        "before": RunQuery(updated_before=middle),
        "before, the oldest": RunQuery(updated_before=oldest + 1_000),
        "before, none": RunQuery(updated_before=oldest),
        "ended before": RunQuery(updated_before=middle, statuses=ended),
        "failed since": RunQuery(updated_since=NEWEST - 7_200, statuses=failed),
        "workflow failed since": RunQuery(workflow="w4", updated_since=middle, statuses=failed),
        "resumable": RunQuery(resumable=True),
        "resumable, of a workflow": RunQuery(resumable=True, workflow="w3"),
        "crashed": RunQuery(crashed=True),
        "crashed, none": RunQuery(crashed=True, workflow="w4"),
    }


def prunes(runs: int) -> dict[str, tuple[RunQuery, int]]:
    """Return rules of `prune`: what finds the runs, and how many are kept."""
    middle = NEWEST - runs / 2
    return {
        "prune before": (ended_runs(None, None, middle), 0),
        "prune failed before": (ended_runs(None, FAILED, middle), 0),
        "prune of a workflow, keep": (ended_runs("w4", None, None), 1_000),
        "prune of a workflow, before": (ended_runs("w3", None, middle), 100),
    }


async def pages_of_prune(store: CheckpointStore, rule: RunQuery, keep: int) -> list[float]:
    """Return the milliseconds that `prune` takes for each of its first pages."""
    times: list[float] = []
    async with aclosing(prunable(store, rule, keep)) as pages:
        began = time.perf_counter()
        async for page in pages:
            await store.delete_unchanged(page)
            times.append((time.perf_counter() - began) * 1e3)
            if len(times) > ROUNDS:
                break
            began = time.perf_counter()
    # What is kept is found only once.
    return times[1:]


def insert_into_sqlite(path: Path) -> Insert:
    def insert(columns: str, rows: Iterator[Row]) -> None:
        marks = ", ".join("?" * len(CREATED_COLUMNS))
        with closing(sqlite3.connect(path)) as database, database:
            # In a small cache, the pages of the indexes of ids would be written again and again.
            database.execute("PRAGMA cache_size = -1000000")
            database.executemany(f"INSERT INTO runs ({columns}) VALUES ({marks})", rows)

    return insert


def insert_into_postgres(url: str) -> Insert:
    def insert(columns: str, rows: Iterator[Row]) -> None:
        with psycopg.connect(url) as connection:
            with connection.cursor().copy(
                f"COPY effectflow.runs ({columns}) FROM STDIN".encode()
            ) as copy:
                for row in rows:
                    copy.write_row(row)
            connection.commit()
        with psycopg.connect(url, autocommit=True) as connection:
            # A server does it by itself soon.
            connection.execute("VACUUM ANALYZE effectflow.runs")

    return insert


async def measured(url: str, insert: Insert, runs: int) -> bool:
    """Print the milliseconds of each page. Return whether all reach the goal."""
    async with open_store(url) as store:
        began = time.perf_counter()
        await anyio.to_thread.run_sync(insert, ", ".join(CREATED_COLUMNS), rows(runs))
        print(f"  built in {time.perf_counter() - began:.0f} s")
        slowest = 0.0
        for name, query in queries(runs).items():
            pages = (query, replace(query, after=(NEWEST - runs / 2, "")))
            times: list[float] = []
            hits = [len(await store.find(page)) for page in pages]
            for page in pages:
                rounds: list[float] = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    await store.find(page)
                    rounds.append((time.perf_counter() - began) * 1e3)
                # The round that was disturbed least.
                times.append(min(rounds))
            slowest = max(slowest, *times)
            missed = "   MISSED" if max(times) > GOAL else ""
            print(f"  {name:<28}{times[0]:8.1f}{times[1]:8.1f} ms  {hits}{missed}")
        for name, (rule, keep) in prunes(runs).items():
            times = await pages_of_prune(store, rule, keep)
            slowest = max(slowest, min(times))
            missed = "   MISSED" if min(times) > GOAL else ""
            print(f"  {name:<28}{min(times):8.1f}{max(times):8.1f} ms  best, worst{missed}")
    print(f"  the slowest page: {slowest:.1f} ms (at most {GOAL:g})")
    return slowest <= GOAL


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or SIZES
    kinds = [word for word in sys.argv[1:] if not word.isdigit()] or ["sqlite", "postgres"]
    reached: list[bool] = []
    for runs in sizes:
        for kind in kinds:
            print(f"{kind}, {runs:,} runs: the first page, and one from the middle")
            with tempfile.TemporaryDirectory() as folder:
                if kind == "sqlite":
                    path = Path(folder) / "runs.db"
                    insert = insert_into_sqlite(path)
                    reached.append(anyio.run(measured, f"sqlite:///{path}", insert, runs))
                    continue
                with postgres_server(Path(folder) / "data") as url:
                    reached.append(anyio.run(measured, url, insert_into_postgres(url), runs))
    sys.exit(not all(reached))


if __name__ == "__main__":
    main()
