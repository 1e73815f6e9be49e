"""`open_store`: a store from one line of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.optional import needs
from effectflow.stores.memory import MemoryStore
from effectflow.stores.sqlite import SqliteStore

__all__ = ["open_store"]


def open_store(url: str) -> CheckpointStore:
    """The store that a URL names, yet to be entered with `async with`.

    ==========================  =====================================================
    `memory:`                   `MemoryStore()`
    `sqlite:///runs.db`         `SqliteStore("runs.db")`, in the current folder
    `sqlite:////var/runs.db`    `SqliteStore("/var/runs.db")`
    `file:./runs`               `FileStore("./runs")`
    `postgresql://host/name`    `PostgresStore("postgresql://host/name")`
    `redis://host:6379/0`       `RedisStore("redis://host:6379/0")`
    ==========================  =====================================================

    Raises ValueError for any other URL, and ModuleNotFoundError, which says what to install, for one
    whose driver is missing.
    """
    scheme, separator, rest = url.partition(":")
    make = _SCHEMES.get(scheme)
    if not separator or make is None:
        raise ValueError(
            f"{_without_password(url)!r} names no store that this version has. "
            "Use memory:, file:DIRECTORY, sqlite:///FILE, such as sqlite:///runs.db, "
            "postgresql://HOST/DATABASE or redis://HOST"
        )
    return make(url, rest)


def _memory(url: str, rest: str) -> CheckpointStore:
    if rest:
        raise ValueError(f"{_without_password(url)!r}: a memory store has no name; use memory:")
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
        from effectflow.stores.file import FileStore

    return FileStore(path)


def _postgres(url: str, _rest: str) -> CheckpointStore:
    with needs("postgres"):
        from effectflow.stores.postgres import PostgresStore

    return PostgresStore(url)


def _redis(url: str, _rest: str) -> CheckpointStore:
    with needs("redis"):
        from effectflow.stores.redis import RedisStore

    return RedisStore(url)


def _without_password(url: str) -> str:
    """A URL as it may be shown: whole only if there is nowhere that a password could be."""
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
