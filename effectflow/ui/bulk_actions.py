"""What people do to many runs at once: each action says what would happen to a run, and does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from effectflow.checkpoint import RunInfo
from effectflow.runs.control import can_be_retried, retry_run
from effectflow.runs.retention import delete_run, may_be_awaited
from effectflow.service.sending import request_cancel
from effectflow.ui.site import Site


@dataclass(frozen=True, slots=True)
class BulkAction:
    """What people do to runs.

    Attributes:
        verb: such as "retry".
        done: what was done then, such as "retried".
        warning: what a person should know before.
        foresee: says what would happen to a run, at a time in seconds since the epoch. It raises
            ValueError, which says why nothing would.
        act: does it to the run with an id. It raises CheckpointError.
    """

    verb: str
    done: str
    warning: str
    foresee: Callable[[Site, RunInfo, float], Awaitable[str]]
    act: Callable[[Site, str], Awaitable[None]] | None = None


def _check_is_free(info: RunInfo, now: float) -> None:
    if info.is_held(now):
        raise ValueError(f"{info.process} drives it")


async def _foresee_retry(_: Site, info: RunInfo, now: float) -> str:
    status = info.summary.status
    if status.has_ended:
        raise ValueError(f"it is {status}")
    _check_is_free(info, now)
    if not can_be_retried(status):
        raise ValueError(f"it is {status}, so there is nothing to try again")
    return "The next worker continues it. Its completed steps are not run again."


async def _foresee_cancel(_: Site, info: RunInfo, now: float) -> str:
    if info.summary.status.has_ended:
        raise ValueError(f"it is {info.summary.status}")
    who = f"{info.process.capitalize()}" if info.is_held(now) else "The next worker"
    return f"{who} runs its finalizers and compensations, and ends it."


async def _foresee_delete(site: Site, info: RunInfo, now: float) -> str:
    _check_is_free(info, now)
    if await may_be_awaited(site.client.checkpoints.store, info.summary.parent):
        raise ValueError(
            f"run {info.summary.parent!r}, which may wait for its result, has not ended"
        )
    undone = "" if info.summary.status.has_ended else " Nothing that it did is undone."
    return f"It is deleted, with its {info.length:,} entries.{undone}"


async def _foresee_export(_: Site, info: RunInfo, now: float) -> str:
    return f"The file has its {info.length:,} entries."


async def _retry(site: Site, run_id: str) -> None:
    by = site.client.by
    await retry_run(site.client.checkpoints, run_id, by=by, clock=site.clock)


async def _cancel(site: Site, run_id: str) -> None:
    await request_cancel(site.client.checkpoints, run_id, by=site.client.by)


async def _delete(site: Site, run_id: str) -> None:
    await delete_run(site.client.checkpoints, run_id)


BULK_ACTIONS: Mapping[str, BulkAction] = {
    action.verb: action
    for action in (
        BulkAction("retry", "retried", "", _foresee_retry, _retry),
        BulkAction("cancel", "asked to end", "", _foresee_cancel, _cancel),
        BulkAction(
            "delete", "deleted", "What is deleted cannot be restored.", _foresee_delete, _delete
        ),
        BulkAction("export", "exported", "", _foresee_export),
    )
}
