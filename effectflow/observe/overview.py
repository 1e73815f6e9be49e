"""What a store has to do: its runs by status, who drives them, how fast they end, what waits longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from effectflow.checkpoint.store import CheckpointStore, RunInfo, RunQuery, RunStatus

MOST_COUNTED = 500
"""No status is counted further than this."""

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_UNENDED = tuple(status for status in RunStatus if not status.has_ended)
_WINDOWS = (60.0, 6.0)
"""The seconds in which runs that ended are counted: the second one if too many ended in the first."""

_AGES = (7 * 86400.0, 86400.0, 6 * 3600.0, 3600.0, 600.0, 60.0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process with the number of the runs that it drives, by their workflows."""

    name: str
    runs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """What a store has to do.

    Attributes:
        at: when this was read, in seconds since the epoch.
        counts: how many runs have each status that has not ended, at most 500 each; those that are
            recorded as running, but that no live process has, count as `crashed`.
        per_minute: how many runs have ended in each way of late, per minute.
        are_rates_bounded: whether more may have ended than `per_minute` says.
        processes: the processes that drive runs, those with most runs first; of the 500 newest runs.
        oldest_due: the run that has been due for longest, and that no process has; None without any.
        longest_waiting: the suspended run that has waited for longest; None without any.
    """

    at: float
    counts: Mapping[str, int]
    per_minute: Mapping[RunStatus, float]
    are_rates_bounded: bool
    processes: tuple[Process, ...]
    oldest_due: RunInfo | None
    longest_waiting: RunInfo | None


def due_since(info: RunInfo) -> float:
    """Return since when a due run is due. The due time of one that is due at once is much earlier."""
    return max(info.summary.due_at or 0.0, info.updated_at)


async def read_overview(store: CheckpointStore, now: float) -> Overview:
    """Read the overview of a store at `now`, in seconds since the epoch.

    It takes about a dozen pages of `find`, so its cost is bounded also in a store with a million runs.
    """
    pages = {
        status: await store.find(RunQuery(statuses=frozenset({status}), limit=MOST_COUNTED))
        for status in _UNENDED
    }
    old = [
        info for status, page in pages.items() for info in await _oldest(store, status, page, now)
    ]
    ended: Sequence[RunInfo] = ()
    window = _WINDOWS[0]
    for window in _WINDOWS:
        since = RunQuery(statuses=_ENDED, updated_since=now - window, limit=2 * MOST_COUNTED)
        ended = await store.find(since)
        if len(ended) < 2 * MOST_COUNTED:
            break
    return overview_of(pages, old, ended, now, window=window)


def overview_of(
    pages: Mapping[RunStatus, Sequence[RunInfo]],
    old: Iterable[RunInfo],
    ended: Sequence[RunInfo],
    now: float,
    *,
    window: float = _WINDOWS[0],
) -> Overview:
    """Return the overview of runs. Pure.

    Parameters:
        pages: the newest runs of each status that has not ended.
        old: runs among which the oldest are.
        ended: the runs that have ended within the window.
        now: the time, in seconds since the epoch.
        window: in seconds.
    """
    counts: Counter[str] = Counter()
    driven: dict[str, Counter[str]] = {}
    for status, page in pages.items():
        for info in page:
            is_held = info.is_held(now)
            counts["crashed" if status is RunStatus.RUNNING and not is_held else str(status)] += 1
            if is_held:
                driven.setdefault(info.process, Counter())[info.summary.workflow] += 1
    free = [info for info in old if not info.is_held(now)]
    due = [one for one in free if one.summary.due_at is not None and one.summary.due_at <= now]
    waiting = [one for one in free if one.summary.status is RunStatus.SUSPENDED and one not in due]
    endings = Counter(info.summary.status for info in ended)
    return Overview(
        now,
        dict(counts),
        {status: endings[status] * 60.0 / window for status in sorted(_ENDED)},
        len(ended) >= 2 * MOST_COUNTED,
        tuple(
            Process(name, dict(runs.most_common()))
            for name, runs in sorted(driven.items(), key=lambda one: (-one[1].total(), one[0]))
        ),
        min(due, key=due_since, default=None),
        min(waiting, key=lambda one: one.updated_at, default=None),
    )


async def _oldest(
    store: CheckpointStore, status: RunStatus, page: Sequence[RunInfo], now: float
) -> Sequence[RunInfo]:
    """Return runs of a status among which the oldest is: of a long list, those before some age."""
    if len(page) < MOST_COUNTED or status is RunStatus.FAILED:
        return page
    for age in _AGES:
        query = RunQuery(statuses=frozenset({status}), updated_before=now - age, limit=MOST_COUNTED)
        if older := await store.find(query):
            return older
    return page
