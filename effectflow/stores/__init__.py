"""The stores that keep runs. All of them pass the same tests.

Stores that need a driver are imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.imports import needs
from effectflow.stores._memory import MemoryStore
from effectflow.stores._sqlite import SqliteStore
from effectflow.stores._url_options import split_options

if TYPE_CHECKING:
    from effectflow.stores._archive import ArchiveStore
    from effectflow.stores._file import FileStore
    from effectflow.stores._postgres import PostgresStore
    from effectflow.stores._redis import RedisStore

__all__ = [
    "ArchiveStore",
    "FileStore",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "open_store",
]

_EXTRAS = {"FileStore": "file", "PostgresStore": "postgres", "RedisStore": "redis"}
"""The extra that each of these stores needs; its module has the same name."""


if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        if name == "ArchiveStore":
            return _archive_store()
        if name not in _EXTRAS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _with_driver(name)


def _archive_store() -> type[ArchiveStore]:
    # Imported late: most programs read no archives.
    from effectflow.stores._archive import ArchiveStore

    return ArchiveStore


def _with_driver(name: str) -> Callable[..., CheckpointStore]:
    with needs(_EXTRAS[name]):
        return getattr(import_module(f"{__name__}._{_EXTRAS[name]}"), name)


def open_store(url: str) -> CheckpointStore:
    """Return the store that a URL or the path of an SQLite file names. Enter it with `async with`.

    ==========================  =====================================================
    `runs.db`                   `SqliteStore("runs.db")`, as for any path
    `runs.jsonl.gz`             the runs in a file that `effectflow archive` or `export` wrote, only to be
                                read; also `runs.jsonl`
    `memory:`                   `MemoryStore()`
    `sqlite:///runs.db`         `SqliteStore("runs.db")`, in the current folder
    `sqlite:////var/runs.db`    `SqliteStore("/var/runs.db")`
    `file:./runs`               `FileStore("./runs")`
    `postgresql://host/name`    `PostgresStore("postgresql://host/name")`
    `redis://host:6379/0`       `RedisStore("redis://host:6379/0")`
    `unix:///run/redis.sock`    `RedisStore("unix:///run/redis.sock")`
    `my:...`                    what the entry point `my` of the group `effectflow.stores`, of any
                                installed package, returns for the whole URL
    ==========================  =====================================================

    A URL may have options of the store, such as `sqlite:///runs.db?durability=process`,
    `postgresql://host/name?schema=x`, `redis://host?prefix=x`, `pool_size=`, and the timeouts in
    seconds. Other options of a server belong to its driver.

    Raise ValueError for any other URL or option, and ModuleNotFoundError if the driver is missing, with
    the command that installs it. An entry point is imported only when its name is used.

    Example:
        >>> open_store("runs.db")
        SqliteStore('runs.db')
    """
    scheme, separator, rest = url.partition(":")
    # It may contain a password.
    shown = f"{scheme}:..." if any(mark in rest for mark in "@?=") else url
    if not separator or not _SCHEME.fullmatch(scheme):
        if not url or url in _BUILT_IN:
            raise ValueError(f"{url!r} does not name a store. Write {url or 'memory'}:, or a path")
        _check_path(url)
        if url.endswith((".jsonl", ".jsonl.gz")):
            return _archive_store()(url)
        return SqliteStore(url)
    if scheme in ("sqlite", "file"):
        _check_path(rest)
    match scheme:
        case "memory" if rest:
            raise ValueError(f"{shown!r}: a memory store does not have a name; use memory:")
        case "memory":
            return MemoryStore()
        case "sqlite" if len(rest) > 3 and rest.startswith("///"):
            path, options = split_options("sqlite", rest[3:])
            return SqliteStore(path, **options)
        case "sqlite":
            raise ValueError(
                f"{shown!r}: write sqlite:///FILE for a file in the current folder, "
                "or sqlite:////PATH"
            )
        case "file" if named := rest.removeprefix("//"):
            path, options = split_options("file", named)
            return _with_driver("FileStore")(path, **options)
        case "file":
            raise ValueError(
                f"{shown!r}: write file:DIRECTORY, such as file:./runs or file:/var/runs"
            )
        case "postgres" | "postgresql":
            address, options = split_options("postgresql", url)
            return _with_driver("PostgresStore")(address, **options)
        case "redis" | "rediss" | "unix":
            address, options = split_options("redis", url)
            return _with_driver("RedisStore")(address, **options)
        case _:
            return _from_entry_point(scheme, shown)(url)


def _check_path(path: str) -> None:
    """Raise ValueError for a path with a password, which is that of a server. Messages show paths."""
    if re.search(r"password\s*=", path, re.IGNORECASE):
        raise ValueError(
            "a store in files takes no password, and it would be part of a name. For a server, write "
            "postgresql://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST"
        )


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")
"""At least two characters, because a single letter is a drive of Windows."""

_BUILT_IN = ("memory", "sqlite", "file", "postgres", "postgresql", "redis", "rediss", "unix")
_GROUP = "effectflow.stores"


def _from_entry_point(scheme: str, shown: str) -> Callable[[str], CheckpointStore]:
    """Return what an installed package registered for a scheme. `shown` is the URL in an error."""
    # Imported late: it takes 10 ms, and most programs never need it.
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP, name=scheme):
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            owner = point.dist.name if point.dist else "an unknown package"
            reason = f"the store {scheme!r} of {owner} cannot be loaded from {point.value}: {error}"
            raise ValueError(f"{shown!r}: {reason}") from error
    others = [f"{name}:" for name in sorted(entry_points(group=_GROUP).names)]
    raise ValueError(
        f"{shown!r} does not name a store. Use a path such as runs.db, memory:, file:DIRECTORY, "
        "sqlite:///FILE, such as sqlite:///runs.db, postgresql://HOST/DATABASE or redis://HOST"
        + (f". Installed packages add {', '.join(others)}" if others else "")
    )
