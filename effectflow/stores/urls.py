"""`open_store`: a store from one line of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from effectflow.checkpoint.store import CheckpointStore
from effectflow.stores.memory import MemoryStore
from effectflow.stores.sqlite import SqliteStore

__all__ = ["open_store"]


def open_store(url: str) -> CheckpointStore:
    """The store that a URL names, yet to be entered with `async with`.

    ==========================  =====================================================
    `memory:`                   `MemoryStore()`
    `sqlite:///runs.db`         `SqliteStore("runs.db")`, in the current folder
    `sqlite:////var/runs.db`    `SqliteStore("/var/runs.db")`
    ==========================  =====================================================

    Raises ValueError for any other URL.
    """
    scheme, separator, rest = url.partition(":")
    make = _SCHEMES.get(scheme)
    if not separator or make is None:
        raise ValueError(
            f"{url!r} names no store that this version has. "
            "Use memory: or sqlite:///FILE, such as sqlite:///runs.db"
        )
    return make(url, rest)


def _memory(url: str, rest: str) -> CheckpointStore:
    if rest:
        raise ValueError(f"{url!r}: a memory store has no name; use memory:")
    return MemoryStore()


def _sqlite(url: str, rest: str) -> CheckpointStore:
    path = rest.removeprefix("///")
    if path == rest or not path:
        raise ValueError(
            f"{url!r}: write sqlite:///FILE for a file in the current folder, or sqlite:////PATH"
        )
    return SqliteStore(path)


_SCHEMES: Mapping[str, Callable[[str, str], CheckpointStore]] = {
    "memory": _memory,
    "sqlite": _sqlite,
}
