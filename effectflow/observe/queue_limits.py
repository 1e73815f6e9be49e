"""Whether a run waits for room in its queue."""

from __future__ import annotations

from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus
from effectflow.checkpoint.store import CheckpointStore, Queue

_MOST_COUNTED = 500
"""The runs in progress are counted only among the newest of each status. So a queue may be full without
being called that."""

_IN_PROGRESS = (RunStatus.RUNNING, RunStatus.PENDING)
"""The statuses of runs in progress. One that has recorded nothing yet is still pending."""


async def full_queue(store: CheckpointStore, info: RunInfo, queue: Queue | None, now: float) -> str:
    """Return that a run is due and its queue has no room for it, as a part of a sentence; or "".

    Stores do not tell when a queue has started runs, so its limit per second does not matter.

    Parameters:
        store: the store of the run.
        info: the run.
        queue: the limits of its queue; None without any.
        now: the time, in seconds since the epoch.
    """
    due_at, key = info.summary.due_at, info.summary.key
    if queue is None or due_at is None or due_at > now or info.is_held(now):
        return ""
    if queue.limit == 0:
        return f"the limit of queue {queue.name!r} is 0"
    if queue.limit is None and not (queue.per_key and key):
        return ""
    keys = [
        one.summary.key
        for status in _IN_PROGRESS
        for one in await store.find(RunQuery(statuses=frozenset({status}), limit=_MOST_COUNTED))
        if one.summary.queue_name == queue.name and one.is_held(now)
    ]
    if queue.limit is not None and len(keys) >= queue.limit:
        return f"queue {queue.name!r} has {_runs(len(keys))} in progress, and its limit is {queue.limit}"
    if queue.per_key and key and (count := keys.count(key)) >= queue.per_key:
        of_key = (
            f"{_runs(count)} with its key in progress, and the limit of a key is {queue.per_key}"
        )
        return f"queue {queue.name!r} has {of_key}"
    return ""


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
