"""Where runs are kept. Each store passes the same tests.

The stores that need a driver are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.effects.optional import needs
from effectflow.stores.memory import MemoryStore
from effectflow.stores.sqlite import SqliteStore
from effectflow.stores.urls import open_store

if TYPE_CHECKING:
    from effectflow.stores.file import FileStore
    from effectflow.stores.postgres import PostgresStore
    from effectflow.stores.redis import RedisStore

__all__ = [
    "FileStore",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "open_store",
]

_EXTRAS = {"FileStore": "file", "PostgresStore": "postgres", "RedisStore": "redis"}


def __getattr__(name: str) -> object:
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs(_EXTRAS[name]):
        return getattr(import_module(f"{__name__}.{_EXTRAS[name]}"), name)
