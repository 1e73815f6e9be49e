"""Where runs are kept. Each store passes the same tests."""

from effectflow.stores.memory import MemoryStore
from effectflow.stores.sqlite import SqliteStore
from effectflow.stores.urls import open_store

__all__ = ["MemoryStore", "SqliteStore", "open_store"]
