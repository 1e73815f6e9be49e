"""Notices that are owed to the parents of runs.

The end of a run and the notice to its parent are in two folders, so a process can die between the two
writes. It therefore notes first what it is about to do, and a search for due runs completes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from effectflow.stores._atomic_files import TEMPORARY, make_folder, write_whole


@dataclass(frozen=True, slots=True)
class OwedNotice:
    """A notice to the parent of a run, which may have ended."""

    path: Path
    run_id: str
    parent: str

    def settle(self) -> None:
        """Forget the notice, since it was sent or is not needed."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def owe(folder: Path, run_id: str, parent: str, *, fence: int, length: int) -> OwedNotice:
    """Note durably that the parent is to be told of an append to a run. Raise OSError."""
    make_folder(folder)
    name = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    path = folder / f"{name}-{fence}-{length}.json"
    write_whole(path, orjson.dumps({"run_id": run_id, "parent": parent}))
    return OwedNotice(path, run_id, parent)


def owed_notices(folder: Path) -> Iterator[OwedNotice]:
    """Yield the notices that were owed and not settled."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix != TEMPORARY]
    except FileNotFoundError:
        return
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = orjson.loads(path.read_bytes())
            yield OwedNotice(path, content["run_id"], content["parent"])
