"""The summaries of runs as fields and columns, and queries for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunInfo, RunQuery, RunStatus, RunSummary

logger = logging.getLogger(__name__)

A = TypeVar("A")

SUMMARY_FIELDS = tuple(field.name for field in fields(RunSummary))


UNREADABLE = RunSummary("", RunStatus.RUNNING, 0.0)
"""Stands for a summary that cannot be read, so that a repair can claim the run and replace it."""


def summary_fields(summary: RunSummary) -> dict[str, Any]:
    """Return the fields of a summary by name. `asdict` is slower, since it copies them."""
    return {name: getattr(summary, name) for name in SUMMARY_FIELDS}


def summary_of(run_id: str, columns: Iterable[Any]) -> RunSummary:
    """Return the summary of a run from its fields. Raise CorruptCheckpoint for an unknown status."""
    fields = dict(zip(SUMMARY_FIELDS, columns, strict=True))
    fields["status"] = RunStatus.stored(fields["status"], run_id)
    fields["is_nested"] = bool(fields["is_nested"])
    return RunSummary(**fields)


def run_info(run_id: str, *columns: Any) -> RunInfo:
    """Return one line about a run, from its columns in a database.

    `columns` are the fields of the summary, the time and the number of the newest record, and the owner
    (empty or None without a lease), fencing token and both expiries of the lease.

    Raise CorruptCheckpoint for an unknown status.
    """
    updated_at, length, owner, *rest = columns[len(SUMMARY_FIELDS) :]
    summary = summary_of(run_id, columns[: len(SUMMARY_FIELDS)])
    lease = Lease(run_id, owner, *rest) if owner else None
    return RunInfo(run_id, summary, updated_at, length, lease)


def readable(rows: Iterable[A], info: Callable[[A], RunInfo]) -> Iterator[RunInfo]:
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


def sql_conditions(query: RunQuery, mark: str, run_id: str) -> tuple[str, list[object]]:
    """Return the condition of a query in SQL, with `mark` as placeholder, and its parameters.

    `run_id` is the column of the id, sorted by code points. `newest` is the newest entry of a run. The
    condition does not check whether a live owner holds the run: `matches` does.
    """
    conditions, parameters = ["1 = 1"], list[object]()
    if query.prefix:
        conditions.append(f"{run_id} >= {mark}")
        parameters.append(query.prefix)
        if (behind := _behind(query.prefix)) is not None:
            conditions.append(f"{run_id} < {mark}")
            parameters.append(behind)
    if query.workflow is not None:
        conditions.append(f"workflow = {mark}")
        parameters.append(query.workflow)
    if query.statuses:
        conditions.append(f"status IN ({', '.join([mark] * len(query.statuses))})")
        parameters += map(str, query.statuses)
    if query.resumable:
        conditions.append("status NOT IN ('completed', 'cancelled')")
    if query.updated_before is not None:
        conditions.append(f"newest.written_at < {mark}")
        parameters.append(query.updated_before)
    return " AND ".join(conditions), parameters


def _behind(prefix: str) -> str | None:
    """Return the smallest text that sorts after all texts with this prefix; None if none does."""
    rest = prefix.rstrip(chr(sys.maxunicode))
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    # Surrogates are not characters.
    return rest[:-1] + chr(0xE000 if following == 0xD800 else following)
