"""The stores that keep runs. All of them pass the same tests.

Those that need a driver are imported when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.errors import needs
from effectflow.stores._memory import MemoryStore
from effectflow.stores._sqlite import SqliteStore

if TYPE_CHECKING:
    from effectflow.stores._file import FileStore
    from effectflow.stores._postgres import PostgresStore
    from effectflow.stores._redis import RedisStore

__all__ = [
    "FileStore",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "open_store",
]

_EXTRAS = {"FileStore": "file", "PostgresStore": "postgres", "RedisStore": "redis"}
"""The extra that each of these stores needs; its module has the same name."""


def __getattr__(name: str) -> object:
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _with_driver(name)


def _with_driver(name: str) -> Callable[[str], CheckpointStore]:
    with needs(_EXTRAS[name]):
        return getattr(import_module(f"{__name__}._{_EXTRAS[name]}"), name)


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
    # It may contain a password.
    shown = f"{scheme}:..." if "@" in rest or "?" in rest else url
    match scheme if separator else "":
        case "memory" if rest:
            raise ValueError(f"{shown!r}: a memory store does not have a name; use memory:")
        case "memory":
            return MemoryStore()
        case "sqlite" if len(rest) > 3 and rest.startswith("///"):
            return SqliteStore(rest[3:])
        case "sqlite":
            raise ValueError(
                f"{shown!r}: write sqlite:///FILE for a file in the current folder, "
                "or sqlite:////PATH"
            )
        case "file" if path := rest.removeprefix("//"):
            return _with_driver("FileStore")(path)
        case "file":
            raise ValueError(
                f"{shown!r}: write file:DIRECTORY, such as file:./runs or file:/var/runs"
            )
        case "postgres" | "postgresql":
            return _with_driver("PostgresStore")(url)
        case "redis" | "rediss":
            return _with_driver("RedisStore")(url)
        case _:
            raise ValueError(
                f"{shown!r} does not name a store. "
                "Use memory:, file:DIRECTORY, sqlite:///FILE, such as sqlite:///runs.db, "
                "postgresql://HOST/DATABASE or redis://HOST"
            )
