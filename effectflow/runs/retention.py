"""Delete runs: one that nobody needs any more, or all old ones that a rule does not keep."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.errors import (
    ChangeRejected,
    CorruptCheckpoint,
    RunNotFound,
)
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.lease import delete_claimed
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, has_result
from effectflow.checkpoint.store import (
    CheckpointStore,
    find_in_pages,
    find_run,
    is_service,
    store_errors,
)
from effectflow.effects.arguments import check_count, check_text
from effectflow.effects.clock import Duration, finite_time
from effectflow.runs.run_ids import check_run_id

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED})
_BATCH = 50
"""How many runs are deleted at a time."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A rule of an `App`: its workers delete ended runs that are old, in small batches.

    A run is deleted once it is older than `older_than` and is not among the newest `keep`. Never deleted
    are a run that has not ended, one whose parent has not ended, and the newest run of a schedule.

    Attributes:
        older_than: the seconds, or the `timedelta`, since the run ended.
        keep: how many of the newest runs of this workflow and status stay, however old they are.
        workflow: only runs of the workflow with this name; None for those of all workflows.
        status: only runs with this status: completed, cancelled or failed. By default, completed and
            cancelled ones.

    Raises ValueError without `older_than` and `keep`, and for another status.

    Example:
        >>> from datetime import timedelta
        >>> Retention(older_than=timedelta(days=30), keep=100, workflow="checkout").keep
        100
    """

    older_than: Duration = 0
    keep: int = 0
    workflow: str | None = None
    status: RunStatus | None = None

    def __post_init__(self) -> None:
        finite_time("older_than", self.older_than)
        check_rule(self.query(0.0), self.keep)

    def query(self, now: float) -> RunQuery:
        """Return what finds the runs that are old enough at `now`, in seconds since the epoch."""
        seconds = finite_time("older_than", self.older_than)
        return ended_runs(self.workflow, self.status, now - seconds if seconds else None)


def ended_runs(workflow: str | None, status: RunStatus | None, before: float | None) -> RunQuery:
    """Return what finds ended runs, completed and cancelled ones by default.

    `before` is when they ended, in seconds since the epoch.
    """
    if workflow is not None:
        check_text("workflow", workflow)
    if status is not None and status not in {*_ENDED, RunStatus.FAILED}:
        raise ValueError(
            f"only completed, cancelled and failed runs are deleted by a rule, not {status} ones"
        )
    statuses = _ENDED if status is None else frozenset({RunStatus(status)})
    return RunQuery(workflow=workflow, statuses=statuses, updated_before=before)


def check_rule(query: RunQuery, keep: int) -> None:
    """Raise ValueError if a rule does not say which runs stay."""
    check_count("keep", keep, least=0)
    if query.updated_before is None and not keep:
        raise ValueError("say which runs stay: an age, a number of runs to keep, or both")


async def delete_run(checkpoints: Checkpoints, run_id: str) -> None:
    """Delete a run that no process drives. The errors are those of `Handle.delete`."""
    check_run_id(run_id)
    store = checkpoints.store

    async def has_no_parent(info: RunInfo) -> bool:
        if await may_be_awaited(store, parent := info.summary.parent):
            raise ChangeRejected(
                run_id,
                f"run {parent!r}, which has spawned it and may wait for its result, has not ended",
                f"Cancel or delete {parent!r} first.",
            )
        return True

    with store_errors(store, run_id):
        try:
            await delete_claimed(store, run_id, has_no_parent)
        except RunNotFound:
            raise await run_not_found(store, run_id) from None


async def may_be_awaited(store: CheckpointStore, parent: str) -> bool:
    """Return whether a run has a parent that may wait for its result, because it has not ended."""
    if not parent:
        return False
    try:
        found = await find_run(store, parent)
    except CorruptCheckpoint:
        return True
    return found is not None and not found.summary.status.has_ended


async def prune_runs(
    checkpoints: Checkpoints, rule: RunQuery, keep: int, *, dry_run: bool = False
) -> int:
    """Delete the runs that a query finds, except for the newest `keep`. Return how many.

    Runs that have changed, are held by a process, or may be waited for stay. With `dry_run`, delete
    nothing, and return how many it would be.
    """
    check_rule(rule, keep)
    store, count = checkpoints.store, 0
    async with aclosing(prunable(store, rule, keep)) as pages:
        async for page in pages:
            with store_errors(store):
                count += len(page if dry_run else await store.delete_unchanged(page))
    return count


async def delete_archived(
    store: CheckpointStore, archived: Iterable[RunInfo]
) -> AsyncIterator[tuple[Sequence[RunInfo], Container[str]]]:
    """Delete the runs that have ended and are still as they were archived, in small batches.

    Yield each batch, and the ids of those that were deleted. Runs that something needs stay.
    """
    remaining = iter(archived)
    while batch := [*islice(remaining, _BATCH)]:
        with store_errors(store):
            needed = _Needed(store)
            free = [
                info
                for info in batch
                if has_result(info.summary.status)
                and not await needed.has(info)
                and not await _has_messages(store, info)
            ]
            deleted = await store.delete_unchanged(free)
        yield batch, frozenset(deleted)


async def _has_messages(store: CheckpointStore, info: RunInfo) -> bool:
    """Return whether a failed run would lack messages after an import. The others have none."""
    is_failed = info.summary.status is RunStatus.FAILED
    return is_failed and is_service(store) and bool(await store.mailbox(info.run_id))


async def prunable(
    store: CheckpointStore, rule: RunQuery, keep: int
) -> AsyncGenerator[Sequence[RunInfo]]:
    """Yield the runs that a query finds and nothing needs, a page at a time, after the newest `keep`."""
    with store_errors(store):
        place = await _place_after(store, rule, keep)
        if keep and place is None:
            return
        query = replace(rule, after=place, limit=_BATCH)
        while page := await store.find(query):
            needed = _Needed(store)
            yield [info for info in page if not await needed.has(info)]
            if len(page) < _BATCH:
                return
            query = replace(query, after=page[-1].place)


async def _place_after(
    store: CheckpointStore, query: RunQuery, keep: int
) -> tuple[float, str] | None:
    """Return the place of the last of the newest runs, which are kept; None if there are not so many."""
    query, left = replace(query, updated_before=None), keep
    while left:
        page = await store.find(replace(query, limit=min(left, 500)))
        left -= len(page)
        if not page:
            return None
        query = replace(query, after=page[-1].place)
    return query.after


_TICK = re.compile(r"(.+@)\d{4}-\d\d-\d\dT[\d:.+]+")


class _Needed:
    """Tells which ended runs something else needs. What it has looked up, it remembers."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._newest: dict[str, str] = {}
        self._awaiting: dict[str, bool] = {}

    async def has(self, info: RunInfo) -> bool:
        """Return whether a run is the newest of a schedule, or may be awaited by its parent."""
        tick, parent = _TICK.fullmatch(info.run_id), info.summary.parent
        if tick is not None and await self._newest_of(tick[1], info) == info.run_id:
            return True
        if parent not in self._awaiting:
            self._awaiting[parent] = await may_be_awaited(self._store, parent)
        return self._awaiting[parent]

    async def _newest_of(self, prefix: str, info: RunInfo) -> str:
        # It shows up to which tick the runs of a schedule were started.
        if prefix not in self._newest:
            query = RunQuery(prefix=prefix, workflow=info.summary.workflow, limit=_BATCH)
            self._newest[prefix] = ""
            async with aclosing(find_in_pages(self._store, query)) as runs:
                async for found in runs:
                    tick = _TICK.fullmatch(found.run_id)
                    # The name of another schedule may begin with this one and an @.
                    if tick is not None and tick[1] == prefix:
                        self._newest[prefix] = found.run_id
                        break
        return self._newest[prefix]
