"""All stores, with real servers for those that need one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effectflow.checkpoint import CheckpointStore
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from tests.stores.faults.lives import Lives
from tests.stores.faults.preload import built
from tests.stores.servers import RedisServer, postgres_server

# Shows the compared values of its assertions, as in a test module.
pytest.register_assert_rewrite("tests.stores.faults.survivor")


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only. Tests for which trio matters name it: `test_every_store.py` has most of them."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a PostgreSQL server."""
    with postgres_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server that keeps everything on disk."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """Processes that meet faults of the file system."""
    if sys.platform != "linux":
        pytest.fail("faults of the file system are preloaded (LD_PRELOAD), which needs Linux")
    with Lives(built(tmp_path_factory.mktemp("faults"))) as lives:
        yield lives


# It differs from "sqlite full" in what a power loss leaves, which `test_power_loss.py` shows.
SQLITE_PROCESS = pytest.param("sqlite process", marks=pytest.mark.exhaustive)


@pytest.fixture(params=["memory", "file", "sqlite full", SQLITE_PROCESS, "postgres", "redis"])
def make_store_named(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[str], Callable[[], CheckpointStore]]:
    """Returns, for a name, a function that creates a store over the data of that name."""
    match request.param:
        case "memory":
            return lambda _: MemoryStore
        case "file":
            return lambda name: lambda: FileStore(tmp_path / name)
        case "sqlite full":
            return lambda name: lambda: SqliteStore(tmp_path / f"{name}.db")
        case "sqlite process":
            return lambda name: lambda: SqliteStore(tmp_path / f"{name}.db", durability="process")
        case "postgres":
            dsn: str = request.getfixturevalue("postgres")
            prefix = f"test_{time.time_ns()}"
            return lambda name: lambda: PostgresStore(dsn, schema=f"{prefix}_{name}")
        case "redis":
            url: str = request.getfixturevalue("redis")
            return lambda name: lambda: RedisStore(url, prefix=f"{tmp_path}{name}")
        case _:
            raise AssertionError(request.param)


@pytest.fixture
def make_store(
    make_store_named: Callable[[str], Callable[[], CheckpointStore]],
) -> Callable[[], CheckpointStore]:
    """Creates a store; each call over the same data."""
    return make_store_named("runs")
