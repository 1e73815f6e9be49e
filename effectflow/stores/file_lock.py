"""Locks for the files of runs: of a fixed number, so that nothing of a run need outlive it."""

from __future__ import annotations

import zlib
from pathlib import Path

from filelock import FileLock

from effectflow.stores.file_writing import make_folder, write_whole

__all__ = ["LOCK_SECONDS", "RunLock"]

_LOCKS = 1024
"""Several runs may share a lock. Few of those that are written to at one moment do."""

LOCK_SECONDS = 10.0
"""How long to wait for another program that writes to the same run."""

_POLL_SECONDS = 0.01


class RunLock:
    """The lock of a run, and the highest fence of the runs with this lock that were deleted.

    ::

        {number}          the lock
        {number}.fence    the fence
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{zlib.crc32(name.encode()) % _LOCKS:03x}"
        self._lock = FileLock(self.path, timeout=LOCK_SECONDS, poll_interval=_POLL_SECONDS)
        self._fence = self.path.with_suffix(".fence")

    @property
    def held(self) -> FileLock:
        """To be entered; raises Timeout if another program has it for `LOCK_SECONDS`."""
        return self._lock

    def fence(self) -> int:
        """A claim of a run that is not there must give a higher one: stale writers stay out."""
        try:
            return int(self._fence.read_bytes())
        except (FileNotFoundError, ValueError):
            # If it was damaged, stale writers are still told by who they are.
            return 0

    def remember(self, fence: int) -> None:
        """Of a run that is about to be removed."""
        if fence > self.fence():
            make_folder(self.path.parent)
            write_whole(self._fence, b"%d" % fence)
