"""Files that tell others which runs changed: `changes` tells watchers, `notices` tells parents.

Each change is a line of the file `changes`. A watcher reads what was added, many times a second. When the
file is large, it is emptied, and watchers are told that any run may have changed.

The end of a run and the notice to its parent are in different folders, so a process can die between the
two writes. Therefore it first notes in `notices` what it is about to do. The next search for due runs
completes it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import orjson

from effectflow.checkpoint.store import Changes
from effectflow.stores._atomic_files import TEMPORARY, make_folder, write_whole
from effectflow.stores._changes import Announcements

_SECONDS_BETWEEN_LOOKS = 0.05
_MOST_BYTES = 1024 * 1024


class ChangesFile:
    """The changes of the runs of one folder. Any thread may announce one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = uuid4().hex
        self._announcements = Announcements()

    def announce(self, run_id: str) -> None:
        """Tell all watchers that this run changed. Those in other processes may miss it."""
        self._announcements.announce(run_id)
        line = orjson.dumps([self._own, run_id]) + b"\n"
        with suppress(OSError), open(self._path, "ab", buffering=0) as file:
            file.write(line)
            if file.tell() > _MOST_BYTES:
                file.truncate(0)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[Changes]:
        """Watch while the context is open."""
        is_over = threading.Event()
        async with self._announcements.watch() as changes:
            position = self._size()
            follow = threading.Thread(
                target=self._follow,
                args=(position, is_over),
                name="effectflow-changes",
                daemon=True,
            )
            follow.start()
            try:
                yield changes
            finally:
                is_over.set()

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _follow(self, position: int, is_over: threading.Event) -> None:
        """Announce in this process what others write to the file."""
        while not is_over.wait(_SECONDS_BETWEEN_LOOKS):
            size = self._size()
            if size < position:
                self._announcements.announce(None)
                position = size
            elif size > position:
                position = self._announce_lines(position)

    def _announce_lines(self, position: int) -> int:
        """Announce the whole lines after a position. Return where they end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(position)
                data = file.read()
        except OSError:
            return position
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            try:
                writer, run_id = orjson.loads(line)
            except ValueError:
                writer, run_id = "", None
            if writer != self._own:
                self._announcements.announce(run_id)
        return position + len(lines)


@dataclass(frozen=True, slots=True)
class OwedNotice:
    """A notice to the parent of a run, which may have ended."""

    path: Path
    run_id: str
    parent: str

    def settle(self) -> None:
        """Forget the notice, because it was sent or is not needed."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def owe(folder: Path, run_id: str, parent: str, *, fence: int, length: int) -> OwedNotice:
    """Note durably that the parent must be notified of an append to a run. Raise OSError."""
    make_folder(folder)
    name = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    path = folder / f"{name}-{fence}-{length}.json"
    write_whole(path, orjson.dumps({"run_id": run_id, "parent": parent}))
    return OwedNotice(path, run_id, parent)


def owed_notices(folder: Path) -> Iterator[OwedNotice]:
    """Yield the notices that are still owed."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix != TEMPORARY]
    except FileNotFoundError:
        return
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = orjson.loads(path.read_bytes())
            yield OwedNotice(path, content["run_id"], content["parent"])
