"""The copies of earlier versions of a run's `checkpoint.json`, in its folder `history`."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from effectflow.stores._atomic_files import keep_copy

logger = logging.getLogger(__name__)

_COPY = re.compile(r"checkpoint-\d{8}T\d{6}\.\d{6}Z\.json")
_STAMP = "%Y%m%dT%H%M%S.%fZ"


class History:
    """The copies of earlier checkpoints of the run in a folder.

    Parameters:
        most: how many copies to keep.
    """

    def __init__(self, run: Path, most: int = 0) -> None:
        self.path = run / "history"
        self._most = most

    def copies(self) -> list[Path]:
        """Return the copies, newest first."""
        try:
            names = [name for name in os.listdir(self.path) if _COPY.fullmatch(name)]
        except FileNotFoundError:
            return []
        return [self.path / name for name in sorted(names, reverse=True)]

    def keep(self, checkpoint: Path, *, is_damaged: bool) -> list[Path]:
        """Keep a copy of a checkpoint that is about to be replaced. Return all copies, newest first."""
        copies = self.copies()
        if not checkpoint.exists() or not (self._most or is_damaged):
            return copies
        # The last save may have failed after it had made the copy.
        if is_damaged or not copies or not copies[0].samefile(checkpoint):
            kind = "damaged" if is_damaged else "checkpoint"
            copy = self.path / f"{kind}-{_new_stamp(copies)}.json"
            keep_copy(checkpoint, copy)
            if not is_damaged:
                copies.insert(0, copy)
        return copies

    def remove_old(self, run_id: str, copies: list[Path]) -> None:
        """Remove the oldest of these copies if there are too many."""
        for path in copies[self._most :]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning(
                    "cannot remove %s of run %r, which is no longer needed (%s); "
                    "the next save tries again",
                    path.name,
                    run_id,
                    error,
                )

    def empty(self) -> None:
        """Remove everything in the folder."""
        for path in self.path.glob("*"):
            path.unlink()


def _new_stamp(copies: list[Path]) -> str:
    """Return the time, or a time just after the newest copy if the clock was set back."""
    now = datetime.now(UTC)
    # The name may look like a time that `datetime` does not have.
    with suppress(IndexError, ValueError):
        newest = datetime.strptime(copies[0].name, f"checkpoint-{_STAMP}.json").replace(tzinfo=UTC)
        now = max(now, newest + timedelta(microseconds=1))
    return now.strftime(_STAMP)
