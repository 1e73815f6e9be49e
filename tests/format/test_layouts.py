"""A store that was written by an earlier version has, once it is open, the layout of a new one."""

from __future__ import annotations

import json
import re
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis as driver

from effectflow import Checkpoints, Client
from effectflow.checkpoint import CheckpointStore, RunStatus
from effectflow.stores import FileStore, PostgresStore, RedisStore, SqliteStore
from tests.format import dumps
from tests.format.conftest import STORED, unzipped
from tests.format.workflows import approval, request
from tests.format.write import until, working, write_interrupted

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def write_answered(store: CheckpointStore) -> None:
    """Write a run like the stored one that is suspended, with a message in its mailbox."""
    client = Client(Checkpoints(store))
    async with working(store):
        handle = await client.submit(request, "answered", run_id="answered")
        await until(store, "answered", RunStatus.SUSPENDED)
    await handle.send(approval, False)


async def test_sqlite(tmp_path: Path) -> None:
    (tmp_path / "stored.db").write_bytes(unzipped("runs.db"))

    layouts: list[Any] = []
    for name in ("stored.db", "new.db"):
        async with SqliteStore(tmp_path / name):
            with sqlite3.connect(tmp_path / name) as connection:
                tables = connection.execute("SELECT name, sql FROM sqlite_schema").fetchall()
                pragmas = [
                    connection.execute(f"PRAGMA {pragma}").fetchone()
                    for pragma in ("application_id", "user_version")
                ]
            connection.close()
        layouts.append((sorted(tables), pragmas))

    assert layouts[0] == layouts[1]


async def test_postgres(postgres: str) -> None:
    """Tables, indexes and functions: what was released changes only by a migration."""
    dumps.into_postgres(postgres, unzipped("postgres.sql").decode())
    async with PostgresStore(postgres):
        stored = dumps.of_postgres(postgres, "--schema-only")
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP SCHEMA effectflow CASCADE")
    async with PostgresStore(postgres):
        new = dumps.of_postgres(postgres, "--schema-only")

    assert stored.splitlines() == new.splitlines()


async def test_files(tmp_path: Path) -> None:
    async with FileStore(tmp_path) as store:
        await write_interrupted(store)

    for name in ("checkpoint.json", "lease.json"):
        place = Path("sessions") / "interrupted" / name
        stored, new = (
            json.loads((folder / place).read_bytes()) for folder in (STORED / "files", tmp_path)
        )
        assert stored.keys() == new.keys()
        assert stored["effectflow"] == new["effectflow"]
        if "entries" in stored:
            assert stored["entries"][0].keys() == new["entries"][0].keys()


async def test_redis(redis: str) -> None:
    dumps.into_redis(redis, unzipped("redis.json").decode())
    stored = fields_of_answered(redis)
    with driver.Redis.from_url(redis) as client:
        client.flushall()
    async with RedisStore(redis) as store:
        await write_answered(store)

    assert fields_of_answered(redis) == stored


def fields_of_answered(url: str) -> tuple[Any, set[str], set[str]]:
    """Return the layout, and what the hash of the run `answered` and its summary consist of."""
    with driver.Redis.from_url(url) as client:
        layout: Any = client.get("effectflow:layout")
        fields: Any = client.hgetall(f"effectflow:run:{sha256(b'answered').hexdigest()}")
    names = {re.sub(r"^(\w+) .*", r"\1", field.decode()) for field in fields}
    state = json.loads(fields[b"state"])
    return layout, names, {*state, *state["summary"]}
