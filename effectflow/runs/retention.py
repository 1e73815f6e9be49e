"""Delete runs: one that nobody needs any more, or all old ones that a rule does not keep."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.errors import (
    ChangeRejected,
    CheckpointError,
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunNotFound,
)
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.lease import claim_or_release, end_claim
from effectflow.checkpoint.store import (
    CheckpointStore,
    RunInfo,
    RunQuery,
    RunStatus,
    find_run,
    store_errors,
)
from effectflow.effects.arguments import check_count, check_text
from effectflow.effects.clock import Duration, finite_time
from effectflow.runs.run_ids import check_run_id

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED})
_BATCH = 100
"""How many runs are deleted at a time. Stores write what comes at the same time in few commits."""


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


async def delete_run(
    checkpoints: Checkpoints, run_id: str, *, known: RunInfo | None = None
) -> None:
    """Delete a run that no process drives; if `known` is given, only while it is like that.

    Raise RunNotFound, RunBusy, and ChangeRejected if a parent may wait for it or it has changed.
    """
    check_run_id(run_id)
    store = checkpoints.store
    with store_errors(store, run_id):
        try:
            owner, taken = await claim_or_release(store, run_id, seconds=checkpoints.lease_length)
        except RunNotFound:
            if known is not None:
                raise
            raise await run_not_found(store, run_id) from None
        is_released = False
        try:
            if known is not None and not _is_same(taken.info, known):
                raise ChangeRejected(run_id, "it has changed meanwhile", "")
            await _check_parent(store, taken.info)
            await store.delete(run_id, lease=taken.lease)
            is_released = True
        finally:
            if not is_released:
                with anyio.move_on_after(5, shield=True):
                    await store.release(taken.lease)
                    is_released = True
            end_claim(owner, is_released=is_released)


def _is_same(info: RunInfo, known: RunInfo) -> bool:
    return (info.length, info.summary) == (known.length, known.summary)


async def _check_parent(store: CheckpointStore, info: RunInfo) -> None:
    """Raise ChangeRejected if the run that has spawned this one has not ended."""
    parent_id = info.summary.parent
    if not parent_id:
        return
    try:
        parent = await find_run(store, parent_id)
        status = None if parent is None else parent.summary.status
    except CorruptCheckpoint:
        status = RunStatus.BLOCKED
    if status is not None and not status.has_ended:
        raise ChangeRejected(
            info.run_id,
            f"run {parent_id!r}, which has spawned it and may wait for its result, has not ended",
            f"Cancel or delete {parent_id!r} first.",
        )


async def prune_runs(
    checkpoints: Checkpoints, rule: RunQuery, keep: int, *, dry_run: bool = False
) -> int:
    """Delete the runs that a query finds, except for the newest `keep`. Return how many.

    Runs that have changed, are held by a process, or may be waited for stay. With `dry_run`, delete
    nothing, and return how many it would be.
    """
    check_rule(rule, keep)
    count = 0
    async for page in prunable(checkpoints.store, rule, keep):
        if dry_run:
            count += len(page)
        else:
            count += await _delete_all(checkpoints, page)
    return count


async def prunable(
    store: CheckpointStore, rule: RunQuery, keep: int
) -> AsyncIterator[Sequence[RunInfo]]:
    """Yield the runs that a query finds and nothing needs, a page at a time, after the newest `keep`."""
    newest: dict[str, str] = {}
    with store_errors(store):
        place = await _place_after(store, rule, keep)
        if keep and place is None:
            return
        query = replace(rule, after=place, limit=_BATCH)
        while page := await store.find(query):
            yield [info for info in page if await _may_go(store, info, newest)]
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


async def _may_go(store: CheckpointStore, info: RunInfo, newest: dict[str, str]) -> bool:
    """Return whether nothing needs a run that has ended. `newest` has the newest runs of schedules."""
    tick = _TICK.fullmatch(info.run_id)
    if tick is not None:
        # It shows up to which tick the runs of a schedule were started.
        prefix, workflow = tick[1], info.summary.workflow
        if prefix not in newest:
            found = await store.find(RunQuery(prefix=prefix, workflow=workflow, limit=1))
            newest[prefix] = found[0].run_id if found else ""
        if newest[prefix] == info.run_id:
            return False
    try:
        await _check_parent(store, info)
    except ChangeRejected:
        return False
    return True


async def _delete_all(checkpoints: Checkpoints, runs: Sequence[RunInfo]) -> int:
    """Delete these runs at the same time, and return how many were deleted. Raise the first error."""
    deleted, errors = list[str](), list[CheckpointError]()

    async def delete(info: RunInfo) -> None:
        try:
            await delete_run(checkpoints, info.run_id, known=info)
            deleted.append(info.run_id)
        except (RunNotFound, RunBusy, LeaseLost, ChangeRejected):
            # Someone else deletes it, or needs it again.
            pass
        except CheckpointError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for info in runs:
            tasks.start_soon(delete, info)
    if errors:
        raise errors[0]
    return len(deleted)
