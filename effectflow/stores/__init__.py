"""The stores that keep runs. All of them pass the same tests.

Those that need a driver are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.effects.optional import needs
from effectflow.stores._memory import MemoryStore
from effectflow.stores._open_store import open_store
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
    with needs(_EXTRAS[name]):
        return getattr(import_module(f"{__name__}._{_EXTRAS[name]}"), name)
