"""What a store has to do: its runs by status, who drives them, how fast they end, what waits longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus
from effectflow.checkpoint.store import CheckpointStore
from effectflow.observe.statuses import CRASHED, status_text
from effectflow.observe.workers import KnownWorker, known_workers

MOST_COUNTED = 500
"""No status is counted further than this."""

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_UNENDED = tuple(status for status in RunStatus if not status.has_ended)
_WINDOWS = (60.0, 6.0)
"""The seconds in which runs that ended are counted: the second one if too many ended in the first."""

_MOST_JOBS = 20

_AGES = (7 * 86400.0, 86400.0, 6 * 3600.0, 3600.0, 600.0, 60.0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that drives runs or is a worker, or that has died as one. Times are as in `Overview`.

    Attributes:
        name: such as "process 4711 on host".
        runs: the number of its runs, by their workflows.
        wrote_at: when it wrote an entry of one of them last; None without any.
        held_until: when the last of its leases expires, unless it renews them; None without any.
        workers: the workers in it; none if it drives its runs without one, or its worker ends.
    """

    name: str
    runs: Mapping[str, int]
    wrote_at: float | None = None
    held_until: float | None = None
    workers: tuple[KnownWorker, ...] = ()

    @property
    def driven(self) -> int:
        """How many runs it drives."""
        return sum(self.runs.values())

    @property
    def limit(self) -> int | None:
        """How many runs its workers drive at most; None without any."""
        return sum(one.limit for one in self.workers) if self.workers else None

    @property
    def workflows(self) -> Mapping[str, str]:
        """The versions of the workflows of its workers, by name."""
        found = {name: version for one in self.workers for name, version in one.workflows.items()}
        return dict(sorted(found.items()))

    @property
    def seen_at(self) -> float | None:
        """When one of its workers sent a heartbeat last; None without any."""
        return max((one.seen_at for one in self.workers), default=None)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What a queue has to do, as far as its runs are among the 500 newest of their status.

    Attributes:
        name: its name.
        driven: how many of its runs processes drive.
        waiting: how many of its runs have not begun, by their keys; "" for those without one.
    """

    name: str
    driven: int
    waiting: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """What a store has to do.

    Attributes:
        at: when this was read, in seconds since the epoch.
        counts: how many runs have each status that has not ended, at most 500 each; those that are
            recorded as running, but that no live process has, count as `crashed`.
        per_minute: how many runs have ended in each way of late, per minute.
        are_rates_bounded: whether more may have ended than `per_minute` says.
        processes: the processes that drive runs, those with most runs first; of the 500 newest runs. Then
            the processes with idle workers.
        oldest_due: the run that has been due for longest, and that no process has; None without any.
        longest_waiting: the suspended run that has waited for longest; None without any.
        lost: the processes that have died with runs that no other process has taken, and those of workers
            that were lost within the last day.
        queues: the queues with runs that are driven or pending, by name.
        jobs: the newest runs with a job (`has_job`) that have not ended, at most 20.
        versions: the versions of the runs that have not ended, by workflow, with their numbers.
    """

    at: float
    counts: Mapping[str, int]
    per_minute: Mapping[RunStatus, float]
    are_rates_bounded: bool
    processes: tuple[Process, ...]
    oldest_due: RunInfo | None
    longest_waiting: RunInfo | None
    lost: tuple[Process, ...] = ()
    queues: tuple[QueueLoad, ...] = ()
    jobs: tuple[RunInfo, ...] = ()
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


def due_since(info: RunInfo) -> float:
    """Return since when a due run is due. The due time of one that is due at once is much earlier."""
    return max(info.summary.due_at or 0.0, info.updated_at)


async def read_overview(store: CheckpointStore, now: float) -> Overview:
    """Read the overview of a store at `now`, in seconds since the epoch.

    It takes the workers and about a dozen pages of `find`, so its cost is bounded also in a store with a
    million runs.
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
    return overview_of(pages, old, ended, now, window=window, workers=await known_workers(store))


def overview_of(
    pages: Mapping[RunStatus, Sequence[RunInfo]],
    old: Iterable[RunInfo],
    ended: Sequence[RunInfo],
    now: float,
    *,
    window: float = _WINDOWS[0],
    workers: Sequence[KnownWorker] = (),
) -> Overview:
    """Return the overview of runs. Pure.

    Parameters:
        pages: the newest runs of each status that has not ended.
        old: runs among which the oldest are.
        ended: the runs that have ended within the window.
        now: the time, in seconds since the epoch.
        window: in seconds.
        workers: those that the store knows.
    """
    known = [(info, info.is_held(now)) for page in pages.values() for info in page]
    held = [info for info, is_held in known if is_held]
    statuses = [(info, status_text(info.summary.status, is_held=held)) for info, held in known]
    free = [info for info in old if not info.is_held(now)]
    due = [one for one in free if one.summary.due_at is not None and one.summary.due_at <= now]
    waiting = [one for one in free if one.summary.status is RunStatus.SUSPENDED and one not in due]
    endings = Counter(info.summary.status for info in ended)
    crashed = [info for info, status in statuses if status == CRASHED]
    alive = _processes(held, [one for one in workers if not one.is_lost(now)])
    names = {one.name for one in alive}
    gone = [one for one in workers if one.is_lost(now) and one.process not in names]
    return Overview(
        now,
        dict(Counter(status for _, status in statuses)),
        {status: endings[status] * 60.0 / window for status in sorted(_ENDED)},
        len(ended) >= 2 * MOST_COUNTED,
        alive,
        min(due, key=due_since, default=None),
        min(waiting, key=lambda one: one.updated_at, default=None),
        _processes(crashed, gone),
        _queues((info for info, _ in known), held),
        tuple(sorted((info for info, _ in known if has_job(info)), key=_newest_first)[:_MOST_JOBS]),
        dict(Counter((info.summary.workflow, info.summary.details.version) for info, _ in known)),
    )


def has_job(info: RunInfo) -> bool:
    """Return whether a run is a map-reduce job or an iteration, or has dead letters."""
    details = info.summary.details
    return details.kind in ("mapreduce", "iterative") or details.dead_letters > 0


def _most_first(counted: tuple[str, int]) -> tuple[int, str]:
    name, count = counted
    return -count, name


def _newest_first(info: RunInfo) -> tuple[float, str]:
    created_at, run_id = info.place
    return -created_at, run_id


def _processes(runs: Iterable[RunInfo], workers: Iterable[KnownWorker]) -> tuple[Process, ...]:
    """Return the processes that have runs or workers, those with most runs first."""
    known: dict[str, list[KnownWorker]] = {}
    for worker in workers:
        known.setdefault(worker.process, []).append(worker)
    found: dict[str, list[RunInfo]] = {name: [] for name in known}
    for info in runs:
        found.setdefault(info.process, []).append(info)
    return tuple(
        Process(
            name,
            dict(sorted(Counter(info.summary.workflow for info in own).items(), key=_most_first)),
            max((info.updated_at for info in own), default=None),
            max((info.lease.expires_at for info in own if info.lease is not None), default=None),
            tuple(known.get(name, ())),
        )
        for name, own in sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    )


def _queues(known: Iterable[RunInfo], held: Iterable[RunInfo]) -> tuple[QueueLoad, ...]:
    driven = Counter(info.summary.queue_name for info in held)
    waiting: dict[str, Counter[str]] = {name: Counter() for name in driven}
    for info in known:
        if info.summary.status is RunStatus.PENDING:
            waiting.setdefault(info.summary.queue_name, Counter())[info.summary.key] += 1
    return tuple(
        QueueLoad(name, driven[name], dict(sorted(keys.items(), key=_most_first)))
        for name, keys in sorted(waiting.items())
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
