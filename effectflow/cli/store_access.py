"""Open the store that a command names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import typer

from effectflow.checkpoint import CheckpointStore
from effectflow.cli.exits import BadUse
from effectflow.stores import open_store

__all__ = ["STORE", "StoreOption", "store_at", "with_store"]

A = TypeVar("A")

STORE = "sqlite:///effectflow.db"
"""The default of `StoreOption`."""

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="The store of the runs, such as sqlite:///runs.db.",
    ),
]


def store_at(url: str) -> CheckpointStore:
    """Return the store at a URL, not yet opened. Raise BadUse if the URL names no store."""
    try:
        return open_store(url)
    except (ValueError, ModuleNotFoundError) as error:
        raise BadUse(str(error)) from error


def with_store(
    url: str, use: Callable[[CheckpointStore], Awaitable[A]], *, must_exist: bool = True
) -> A:
    """Open the store at a URL and return `await use(store)`.

    Raise BadUse if the store does not exist and `must_exist` is true.
    """
    store = store_at(url)
    path = getattr(store, "path", None) or getattr(store, "directory", None)
    if must_exist and isinstance(path, Path) and not path.exists():
        raise BadUse(
            f"there is no store {path}; `effectflow demo` and `effectflow run` create stores"
        )

    async def main() -> A:
        async with store as opened:
            return await use(opened)

    return anyio.run(main)
