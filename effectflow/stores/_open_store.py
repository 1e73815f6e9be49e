"""Create a store from a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.optional import needs
from effectflow.stores._memory import MemoryStore
from effectflow.stores._sqlite import SqliteStore


def open_store(url: str) -> CheckpointStore:
    """Return the store that a URL names. Enter it with `async with`.

    ==========================  =====================================================
    `memory:`                   `MemoryStore()`
    `sqlite:///runs.db`         `SqliteStore("runs.db")`, in the current folder
    `sqlite:////var/runs.db`    `SqliteStore("/var/runs.db")`
    `file:./runs`               `FileStore("./runs")`
    `postgresql://host/name`    `PostgresStore("postgresql://host/name")`
    `redis://host:6379/0`       `RedisStore("redis://host:6379/0")`
    ==========================  =====================================================

    Raise ValueError for any other URL, and ModuleNotFoundError if the driver is missing, with the
    command that installs it.
    """
    scheme, separator, rest = url.partition(":")
    make = _SCHEMES.get(scheme)
    if not separator or make is None:
        raise ValueError(
            f"{_without_password(url)!r} does not name a store. "
            "Use memory:, file:DIRECTORY, sqlite:///FILE, such as sqlite:///runs.db, "
            "postgresql://HOST/DATABASE or redis://HOST"
        )
    return make(url, rest)


def _memory(url: str, rest: str) -> CheckpointStore:
    if rest:
        raise ValueError(
            f"{_without_password(url)!r}: a memory store does not have a name; use memory:"
        )
    return MemoryStore()


def _sqlite(url: str, rest: str) -> CheckpointStore:
    path = rest.removeprefix("///")
    if path == rest or not path:
        raise ValueError(
            f"{_without_password(url)!r}: write sqlite:///FILE for a file in the current folder, "
            "or sqlite:////PATH"
        )
    return SqliteStore(path)


def _file(url: str, rest: str) -> CheckpointStore:
    path = rest.removeprefix("//")
    if not path:
        raise ValueError(f"{url!r}: write file:DIRECTORY, such as file:./runs or file:/var/runs")
    with needs("file"):
        from effectflow.stores._file import FileStore

    return FileStore(path)


def _postgres(url: str, _rest: str) -> CheckpointStore:
    with needs("postgres"):
        from effectflow.stores._postgres import PostgresStore

    return PostgresStore(url)


def _redis(url: str, _rest: str) -> CheckpointStore:
    with needs("redis"):
        from effectflow.stores._redis import RedisStore

    return RedisStore(url)


def _without_password(url: str) -> str:
    """Return a URL that can be shown: shortened if it may contain a password."""
    scheme, _, rest = url.partition(":")
    return f"{scheme}:..." if "@" in rest or "?" in rest else url


_SCHEMES: Mapping[str, Callable[[str, str], CheckpointStore]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgresql": _postgres,
    "redis": _redis,
    "rediss": _redis,
}
