"""Which runs a query returns, and what to do with damaged ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.store import RunInfo, RunQuery, RunStatus, RunSummary

logger = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")

UNREADABLE = RunSummary("", RunStatus.RUNNING, 0.0)
"""Stands for a summary that cannot be read, so that a repair can claim the run and replace it."""


def readable(rows: Iterable[A], info: Callable[[A], B]) -> Iterator[B]:
    """Yield the `info` of each row. Skip damaged runs with a warning."""
    for row in rows:
        try:
            yield info(row)
        except CorruptCheckpoint as error:
            logger.warning("skipping run %r: %s", error.run_id, error)


def select(infos: Iterable[RunInfo], query: RunQuery, *, now: float) -> list[RunInfo]:
    """Return the runs that the query asks for at `now`, in its order."""
    found = [info for info in infos if query.matches(info, now)]
    found.sort(key=lambda info: (-info.summary.created_at, info.run_id))
    return found[: query.limit]
