"""Summaries and leases: which runs a query returns, damaged ones, and their form as text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.schema import schema_of

logger = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")
S = TypeVar("S", RunSummary, Lease)

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


def to_json(value: RunSummary | Lease) -> str:
    """Return a summary or a lease as text, for `summary_from_json` or `lease_from_json`."""
    return orjson.dumps(schema_of(type(value)).write(value)).decode()


def summary_from_json(text: str | bytes, run_id: str) -> RunSummary:
    """Return the summary of a run from its text. Raise CorruptCheckpoint for another text."""
    return _from_json(RunSummary, text, run_id)


def lease_from_json(text: str | bytes, run_id: str) -> Lease:
    """Return the lease of a run from its text. Raise CorruptCheckpoint for another text."""
    return _from_json(Lease, text, run_id)


def _from_json(kind: type[S], text: str | bytes, run_id: str) -> S:
    try:
        return schema_of(kind).read(dict(orjson.loads(text)))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"what the store keeps about it is not a {kind.__name__}: {error!r}"
        raise CorruptCheckpoint(run_id, reason) from None
