"""The stored runs, each time as a fresh copy that a test may continue."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from effectflow.checkpoint import CheckpointStore, ServiceStore
from effectflow.checkpoint.journal_reader import import_run, read_exported
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from tests.format import dumps
from tests.stores.servers import RedisServer, new_database

STORED = Path(__file__).parent / "stored" / "1"
"""Runs and values in version 1 of the format, in stores of version 4 of the layouts.

`write.py` wrote all but `values.json` and `classes.json`, which are older.
"""


def unzipped(name: str) -> bytes:
    return gzip.decompress((STORED / f"{name}.gz").read_bytes())


@pytest.fixture(scope="session")
def postgres(postgres: str) -> str:
    """The connection string of a database that only these tests use, as their schema has a fixed name."""
    return new_database(postgres)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


SERVICE_STORES = ["sqlite", "postgres", "redis"]


@pytest.fixture(params=[*SERVICE_STORES, "file"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """A store over a copy of the stored runs."""
    return copied(request, tmp_path)


def copied(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    match request.param:
        case "sqlite":
            (tmp_path / "runs.db").write_bytes(unzipped("runs.db"))
            return SqliteStore(tmp_path / "runs.db")
        case "file":
            return FileStore(copytree(STORED / "files", tmp_path / "files"))
        case "postgres":
            dsn: Any = request.getfixturevalue("postgres")
            dumps.into_postgres(dsn, unzipped("postgres.sql").decode())
            return PostgresStore(dsn)
        case "redis":
            url: Any = request.getfixturevalue("redis")
            dumps.into_redis(url, unzipped("redis.json").decode())
            return RedisStore(url)
        case _:
            raise AssertionError(request.param)


@pytest.fixture
async def store(stored: CheckpointStore) -> AsyncIterator[CheckpointStore]:
    """The same, open."""
    async with stored:
        yield stored


@pytest.fixture(params=SERVICE_STORES)
async def service_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[ServiceStore]:
    """A store that workers can use, over a copy of the stored runs, open."""
    store = copied(request, tmp_path)
    assert isinstance(store, ServiceStore)
    async with store:
        yield store


@pytest.fixture
async def imported() -> AsyncIterator[CheckpointStore]:
    """A store that has imported the exported runs."""
    async with MemoryStore() as store:
        for run in read_exported(unzipped("exported.jsonl").splitlines(keepends=True)):
            await import_run(store, run)
        yield store
