"""How many bytes a step with a state of about 200 bytes takes in each store, with its integrity.

    pip install -e '.[postgres,redis]' --group dev
    python benchmarks/space.py

200 runs of 20 steps each, 20 at the same time. SQLite: the whole file. PostgreSQL: the table of the
journal with its indexes. Redis: the memory of the hashes of runs. Files: their lengths. What a run takes
once (its first and last entry, its line in the table of runs) is divided among its steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import psycopg
import redis
from servers import postgres_server, redis_server

from effectflow import Checkpoints, Do, Effect, SqliteStore, pure, step, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.stores import FileStore, PostgresStore, RedisStore

RUNS, STEPS, AT_ONCE = 200, 20, 20
STATE: dict[str, Any] = {"turn": 0, "text": "A sentence that no step changes. " * 5 + "180 in all."}

Format = Literal["json", "cbor"]


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints


@step
def advance(state: dict[str, Any]) -> Effect[object, Exception, dict[str, Any]]:
    return pure({**state, "turn": state["turn"] + 1})


@workflow
def advancing() -> Do[Env, Exception, int]:
    state = STATE
    for _ in range(STEPS):
        state = yield from advance(state)
    return state["turn"]


async def write_runs(store: CheckpointStore, format: Format) -> None:
    places = anyio.CapacityLimiter(AT_ONCE)

    async def write(number: int) -> None:
        async with places:
            env = Env(Checkpoints(store, format=format))
            await advancing.start(run_id=f"run-{number}").run_or_raise(env)

    async with store, anyio.create_task_group() as tasks:
        for number in range(RUNS):
            tasks.start_soon(write, number)


def in_files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def in_postgres(url: str, schema: str) -> int:
    with psycopg.connect(url) as connection:
        query = "SELECT pg_total_relation_size(%s::regclass)"
        [size] = connection.execute(query, [f"{schema}.entries"]).fetchone() or [0]
        return size


def in_redis(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        keys: Any = client.keys("effectflow:run:*")
        used: list[Any] = [client.memory_usage(key, samples=0) for key in keys]
        client.flushall()
        return sum(used)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        redis_server(Path(name)) as on_redis,
        postgres_server(Path(name) / "postgres") as on_postgres,
    ):
        formats: tuple[Format, ...] = ("json", "cbor")
        for format in formats:
            folder = Path(name) / format
            measured: list[tuple[str, CheckpointStore, Callable[[], int], str]] = [
                (
                    "SQLite",
                    SqliteStore(folder / "sqlite" / "runs.db"),
                    lambda folder=folder: in_files(folder / "sqlite"),
                    "450",
                ),
                (
                    "PostgreSQL",
                    PostgresStore(on_postgres, schema=format),
                    lambda schema=format: in_postgres(on_postgres, schema),
                    "600",
                ),
                ("Redis", RedisStore(on_redis), lambda: in_redis(on_redis), "none"),
                (
                    "files",
                    FileStore(folder / "files", history=1),
                    lambda folder=folder: in_files(folder / "files"),
                    "none",
                ),
            ]
            for what, store, size, goal in measured:
                anyio.run(write_runs, store, format)
                each = size() / RUNS / STEPS
                print(f"{what:<11}{format:<5}{each:6,.0f} bytes a step (to reach: {goal})")


if __name__ == "__main__":
    main()
