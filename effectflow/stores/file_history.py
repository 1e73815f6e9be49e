"""The copies of a run's earlier checkpoints: their names, their order, and how many are kept."""

from __future__ import annotations

import logging
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["copies_of", "new_stamp", "without_old"]

logger = logging.getLogger(__name__)

_COPY = re.compile(r"checkpoint-\d{8}T\d{6}\.\d{6}Z\.json")
_STAMP = "%Y%m%dT%H%M%S.%fZ"


def copies_of(folder: Path) -> list[Path]:
    """The copies of earlier checkpoints in the folder of a run, newest first."""
    history = folder / "history"
    try:
        names = [name for name in os.listdir(history) if _COPY.fullmatch(name)]
    except FileNotFoundError:
        return []
    return [history / name for name in sorted(names, reverse=True)]


def new_stamp(copies: list[Path]) -> str:
    """The time, or just after the newest copy if the clock was set back since."""
    now = datetime.now(UTC).strftime(_STAMP)
    if not copies:
        return now
    newest = copies[0].name.removeprefix("checkpoint-").removesuffix(".json")
    if newest < now:
        return now
    try:
        after = datetime.strptime(newest, _STAMP).replace(tzinfo=UTC) + timedelta(microseconds=1)
    except ValueError:
        # A name that has the form of a time and is none.
        return now
    return after.strftime(_STAMP)


def without_old(copies: list[Path], limit: int, run_id: str) -> list[Path]:
    """Remove the oldest copies. Gives those that are kept, and those that cannot be removed now."""
    left: list[Path] = []
    for path in copies[limit:]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning(
                "%s of run %r is a copy too many and cannot be removed (%s); the next save tries again",
                path.name,
                run_id,
                error,
            )
            left.append(path)
    return [*copies[:limit], *left]
