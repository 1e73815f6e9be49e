"""The stores, each as a URL-like name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from effectflow.checkpoint import CheckpointStore
from effectflow.stores import MemoryStore, SqliteStore


@pytest.fixture(params=["memory", "sqlite full", "sqlite process"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointStore]:
    """Makes a store; those that keep things keep them between two calls."""
    match request.param:
        case "memory":
            return MemoryStore
        case "sqlite full":
            return lambda: SqliteStore(tmp_path / "runs.db")
        case _:
            return lambda: SqliteStore(tmp_path / "runs.db", durability="process")
