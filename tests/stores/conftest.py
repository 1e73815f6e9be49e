"""All stores, with real servers for those that need one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import pytest

from effectflow import stores
from effectflow.checkpoint import CheckpointStore
from effectflow.checkpoint.store import ServiceStore
from tests.stores.servers import RedisServer

if TYPE_CHECKING:
    from tests.stores.faults.lives import Lives

# Shows the compared values of its assertions, as in a test module.
pytest.register_assert_rewrite("tests.stores.faults.survivor")


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only. Tests for which trio matters name it: `test_conformance.py` has most of them."""
    return "asyncio"


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server that keeps everything on disk."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """Processes that meet faults of the file system."""
    # Imported late, as these need all that drives runs, and most tests of stores do not.
    from tests.stores.faults.lives import Lives
    from tests.stores.faults.preload import built

    if sys.platform != "linux":
        pytest.fail("faults of the file system are preloaded (LD_PRELOAD), which needs Linux")
    with Lives(built(tmp_path_factory.mktemp("faults"))) as lives:
        yield lives


MakeNamed: TypeAlias = Callable[[str], Callable[[], CheckpointStore]]
MakeServiceNamed: TypeAlias = Callable[[str], Callable[[], ServiceStore]]

SERVICES = [
    "memory",
    "sqlite full",
    # It differs from "sqlite full" in what a power loss leaves, which `test_power_loss.py` shows.
    pytest.param("sqlite process", marks=pytest.mark.exhaustive),
    "postgres",
    "redis",
]
"""The stores that workers can use."""

STORES = [*SERVICES, "file"]
"""All stores."""


def _make_named(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNamed:
    match request.param:
        case "memory":
            return lambda _: stores.MemoryStore
        case "file":
            return lambda name: lambda: stores.FileStore(tmp_path / name)
        case "sqlite full":
            return lambda name: lambda: stores.SqliteStore(tmp_path / f"{name}.db")
        case "sqlite process":
            path = tmp_path / "process"
            return lambda name: lambda: stores.SqliteStore(path / name, durability="process")
        case "postgres":
            dsn: str = request.getfixturevalue("postgres")
            prefix = f"test_{time.time_ns()}"
            return lambda name: lambda: stores.PostgresStore(dsn, schema=f"{prefix}_{name}")
        case "redis":
            url: str = request.getfixturevalue("redis")
            return lambda name: lambda: stores.RedisStore(url, prefix=f"{tmp_path}{name}")
        case _:
            raise AssertionError(request.param)


@pytest.fixture(params=STORES)
def make_store_named(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNamed:
    """Returns, for a name, a function that creates a store over the data of that name."""
    return _make_named(request, tmp_path)


@pytest.fixture
def make_store(make_store_named: MakeNamed) -> Callable[[], CheckpointStore]:
    """Creates a store; each call over the same data."""
    return make_store_named("runs")


@pytest.fixture
def two_stores(
    make_store: Callable[[], CheckpointStore],
) -> tuple[CheckpointStore, CheckpointStore]:
    """Two stores on the same data, as two processes have."""
    store = make_store()
    return store, store if store.durability == "memory" else make_store()


@pytest.fixture(params=SERVICES)
def make_service_named(request: pytest.FixtureRequest, tmp_path: Path) -> MakeServiceNamed:
    """As `make_store_named`, of those that workers can use."""
    return cast("MakeServiceNamed", _make_named(request, tmp_path))


@pytest.fixture
def make_service(make_service_named: MakeServiceNamed) -> Callable[[], ServiceStore]:
    """Creates a store that workers can use; each call over the same data."""
    return make_service_named("runs")
