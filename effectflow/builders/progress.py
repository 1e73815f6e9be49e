"""How far a run has got with the items of its job: a map-reduce, or a parallel operator over a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.entries import BeforeStep
from effectflow.checkpoint.run_info import RunStatus
from effectflow.effects.clock import in_words
from effectflow.effects.paths import StepPath, is_within, step_path

_OVER_LISTS = ("map", "par_traverse", "par_all", "par_try_all")

_WINDOW = 50
"""The number of items from which the speed of a job is taken."""


@dataclass(frozen=True, slots=True)
class JobPhase:
    """When a phase of a job happened. Times are in seconds since the epoch.

    Attributes:
        name: "map", or "reduce" for one round of the reduction.
        round: the round of the reduction, from 1; 0 for "map".
        began: when its first step that is known began. The first rounds of the reduction begin while
            items are mapped.
        ended: when it ended; None if it has not, or if that is not known yet.
    """

    name: Literal["map", "reduce"]
    round: int
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job: a map-reduce, or a `par_traverse`, `par_all` or `par_try_all`.

    Attributes:
        iteration: the round of an iterative run, from 1, or 0 before the first; None for other runs.
        phase: "map" while items are mapped, then "reduce", and "complete" at the end.
        items_done: the number of items that are mapped. Nothing in their branches is in progress.
        items_failed: the number of items that failed: dead letters, or the item that stopped the job.
        items_total: the number of all items; None if the source has no length and is not exhausted.
        reduce_round: the highest round of the reduction that has begun; 0 before the first.
        groups_done: the number of groups that are reduced.
        is_reduced: whether the job reduces the values of its items.
        per_second: the number of items done per second, of late; None if that is not known.
    """

    iteration: int | None
    phase: Literal["map", "reduce", "complete"]
    items_done: int
    items_failed: int
    items_total: int | None
    reduce_round: int
    groups_done: int
    is_reduced: bool = True
    per_second: float | None = field(default=None, compare=False)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until all items are mapped, at the speed of late; None if that is not known."""
        if self.items_total is None or not self.per_second:
            return None
        return max(0, self.items_total - self.items_done - self.items_failed) / self.per_second

    @property
    def left(self) -> str:
        """The same in words, such as "about 14s left"; "" if that is not known, or nothing is left."""
        return f"about {in_words(self.seconds_left)} left" if self.seconds_left else ""

    def __str__(self) -> str:
        """Return the progress in words, such as "12 of 80 items, phase map"."""
        total = "" if self.items_total is None else f" of {self.items_total}"
        failed = f", {self.items_failed} failed" if self.items_failed else ""
        phase = f", phase {self.phase}" if self.is_reduced else ""
        return f"{self.items_done}{total} items{failed}{phase}"


class JobPlace(NamedTuple):
    """The flow in which a run has its job, and the round of an iterative run."""

    flow: str
    iteration: int | None = None


@dataclass(slots=True)
class Job:
    """What is known about a job.

    Attributes:
        is_reduced: whether it reduces the values of its items.
        total: the number of its items, if that is known.
        mapped: the path of the step that ended its map phase; None before.
        open: the steps in progress, by item.
        done, failed: the items in whose branches nothing is in progress.
        groups: the groups that have begun, with whether they are reduced.
        times: how many items were done at some time, of late.
    """

    is_reduced: bool = True
    total: int | None = None
    mapped: str | None = None
    open: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    done: set[str] = field(default_factory=set[str])
    failed: set[str] = field(default_factory=set[str])
    groups: dict[str, bool] = field(default_factory=dict[str, bool])
    times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def progress(self, iteration: int | None = None, *, is_complete: bool = False) -> JobProgress:
        """Return its progress. `is_complete` says whether its run is."""
        done, failed = len(self.done), len(self.failed)
        is_mapped = not self.open and (
            self.mapped is not None if self.is_reduced else done + failed == self.total
        )
        after = "reduce" if self.is_reduced else "complete"
        return JobProgress(
            iteration=iteration,
            phase="complete" if is_complete else after if is_mapped else "map",
            items_done=done,
            items_failed=failed,
            items_total=self.total,
            reduce_round=max(map(_round_of, self.groups), default=0),
            groups_done=sum(self.groups.values()),
            is_reduced=self.is_reduced,
            per_second=self._speed(),
        )

    def _speed(self) -> float | None:
        if not self.times:
            return None
        (began, before), (last, now) = self.times[0], self.times[-1]
        return (now - before) / (last - began) if last > began else None


class JobCounter:
    """Counts the items of the jobs of a run, as its steps begin and end.

    Attributes:
        jobs: the jobs, by the path of the operator over their items.
        newest: the path of the job that has begun a step last; "" before.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.newest = ""

    @property
    def job(self) -> Job | None:
        """The job that has begun a step last."""
        return self.jobs.get(self.newest)

    def expect(self, operator: str, items: int) -> None:
        """Note how many items an operator has."""
        if StepPath(operator).name in _OVER_LISTS:
            self._job(operator).total = items

    def begin(self, path: str, at: float | None = None) -> None:
        """Note that a step begins, and when, in seconds, if its job is timed."""
        place = _place_of(path)
        if place is None:
            return
        self.newest, job = place.operator, self._job(place.operator)
        if place.is_group:
            job.groups[place.key] = False
            return
        job.open.setdefault(place.key, set()).add(path)
        job.done.discard(place.key)
        job.failed.discard(place.key)
        if at is not None and not job.times:
            job.times.append((at, len(job.done)))

    def end(
        self, path: str, output: object = None, *, has_failed: bool = False, at: float | None = None
    ) -> None:
        """Note that a step ends, or that it had ended before this life."""
        place = _place_of(path)
        if place is None:
            self._end_map(path, output)
            return
        self.newest, job = self.newest or place.operator, self._job(place.operator)
        if place.is_group:
            job.groups[place.key] = not has_failed
            return
        others = job.open.get(place.key, set())
        others.discard(path)
        if not others:
            job.open.pop(place.key, None)
            (job.failed if has_failed else job.done).add(place.key)
            if at is not None:
                job.times.append((at, len(job.done)))

    def _end_map(self, path: str, output: object) -> None:
        if not self.jobs:
            return
        step = StepPath(path)
        job = self.jobs.get(step_path(step.flow, "map", step.occurrence))
        if step.name == "mapped" and job is not None and isinstance(output, int):
            job.mapped, job.total = path, output

    def _job(self, operator: str) -> Job:
        if operator not in self.jobs:
            self.jobs[operator] = Job(is_reduced=StepPath(operator).name == "map")
        return self.jobs[operator]


class _Place(NamedTuple):
    operator: str
    key: str
    is_group: bool


def _place_of(path: str) -> _Place | None:
    """Return the outermost item or group that a step is in."""
    if "/" not in path:
        # Most steps of a long run that is no job are in no branch.
        return None
    found, flow = None, StepPath(path).flow
    while flow:
        operator, key = flow.operator, flow.key
        if key is not None and operator.name in (*_OVER_LISTS, "reduce"):
            is_group = operator.name == "reduce"
            over = step_path(operator.flow, "map", operator.occurrence) if is_group else operator
            found = _Place(str(over), key, is_group)
        flow = flow.flow
    return found


def _round_of(group: str) -> int:
    return int(group.partition(".")[0])


def progress_of(checkpoint: Checkpoint, place: JobPlace | None) -> JobProgress | None:
    """Return the progress of the job of a run; None without one. Pure.

    Parameters:
        place: where the job is; None for the job that has begun a step last.
    """
    counter = _counted(checkpoint)
    job = counter.job
    if place is not None and (job is None or not _is_in(counter.newest, place)):
        job = Job()
    if job is None:
        return None
    _add_times(checkpoint, counter.newest, job)
    is_complete = checkpoint.status is RunStatus.COMPLETED
    return job.progress(place and place.iteration, is_complete=is_complete)


def _is_in(operator: str, place: JobPlace) -> bool:
    return not place.flow or is_within(operator, place.flow)


def _counted(checkpoint: Checkpoint) -> JobCounter:
    counter = JobCounter()
    for operator, items in (checkpoint.metadata.items or {}).items():
        counter.expect(operator, items)
    for path in checkpoint.metadata.attempts:
        counter.begin(path)
    outputs = {step.step: step.output for step in checkpoint.completed_steps}
    for item in checkpoint.history:
        counter.end(item.step, outputs.get(item.step), has_failed=item.outcome == "failed")
    return counter


def _add_times(checkpoint: Checkpoint, operator: str, job: Job) -> None:
    """Add when the items of a job were done."""
    begins, ends = list[float](), dict[str, float]()
    for step in checkpoint.completed_steps:
        place = _place_of(step.step)
        if place is not None and place.operator == operator and not place.is_group:
            begins.append(step.completed_at - step.duration)
            ends[place.key] = max(step.completed_at, ends.get(place.key, 0.0))
    times = (min(begins, default=0.0), *sorted(ends.values()))
    job.times.extend((at, count) for count, at in enumerate(times))


def history_of(checkpoint: Checkpoint, place: JobPlace | None) -> tuple[JobPhase, ...]:
    """Return when the phases of a job happened that have begun, in order. Pure.

    The job is that of `progress_of`; without one the history is empty.
    """
    counter = _counted(checkpoint)
    if counter.job is None or (place is not None and not _is_in(counter.newest, place)):
        return ()
    return tuple(_phases(checkpoint, counter.newest, counter.job))


def _phases(checkpoint: Checkpoint, operator: str, job: Job) -> Iterator[JobPhase]:
    places = {path: _place_of(path) for path in checkpoint.metadata.attempts}
    parts = {path: one for path, one in places.items() if one and one.operator == operator}
    ends = {step.step: step.completed_at for step in checkpoint.completed_steps}
    begins = {step.step: step.completed_at - step.duration for step in checkpoint.completed_steps}
    if isinstance(checkpoint.state, BeforeStep):
        # The newest step may be the only one of its phase.
        begins.setdefault(checkpoint.state.step, checkpoint.state.at)

    def times(paths: Iterable[str], of: dict[str, float]) -> list[float]:
        return [of[path] for path in paths if path in of]

    mapped = None if job.mapped is None else ends[job.mapped]
    items = [path for path, part in parts.items() if not part.is_group]
    if began := times([*items, job.mapped or ""], begins):
        yield JobPhase("map", 0, min(began), mapped)
    rounds = {path: _round_of(part.key) for path, part in parts.items() if part.is_group}
    for number in sorted(set(rounds.values())):
        of_round = [path for path in rounds if rounds[path] == number]
        later = times((path for path in rounds if rounds[path] > number), ends)
        # Once all items are mapped, the groups that are left are reduced round by round.
        is_over = checkpoint.status is RunStatus.COMPLETED or (
            mapped is not None and any(end > mapped for end in later)
        )
        if began := times(of_round, begins):
            ended = max(times(of_round, ends), default=None) if is_over else None
            yield JobPhase("reduce", number, min(began), ended)
