"""The progress of a map-reduce or iterative run, read from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from effectflow.checkpoint.checkpoint import Checkpoint, CompletedStep
from effectflow.checkpoint.entries import BeforeStep
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.paths import StepPath, step_path


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
    """The progress of a job.

    Attributes:
        iteration: the round of an iterative run, from 1, or 0 before the first; None for other runs.
        phase: "map" while items are mapped, then "reduce", and "complete" at the end.
        items_done: the number of items that are mapped.
        items_failed: the number of items that failed: dead letters, or the item that stopped the job.
        items_total: the number of all items; None until the source is exhausted.
        reduce_round: the highest round of the reduction that has begun; 0 before the first.
        groups_done: the number of groups that are reduced.
    """

    iteration: int | None
    phase: Literal["map", "reduce", "complete"]
    items_done: int
    items_failed: int
    items_total: int | None
    reduce_round: int
    groups_done: int


class _Job(NamedTuple):
    """A job of a run: the round that it belongs to, its parts that have begun, and its end of mapping."""

    iteration: int | None
    items: list[_Part]
    groups: list[_Part]
    mapped: CompletedStep | None


def job_progress(checkpoint: Checkpoint) -> JobProgress | None:
    """Return the progress of a map-reduce run, or of the current round of an iterative one. Pure.

    For another workflow, return the progress of the job within it that began last, which is "complete"
    once the run is; None without a job.
    """
    job = _job_of(checkpoint)
    if job is None:
        return None
    iteration, items, groups, mapped = job
    done = {item.key for item in items if item.outcome == "completed"}
    failed = {item.key for item in items if item.outcome == "failed"} - done
    total = None if mapped is None else cast(int, mapped.output)
    is_mapping = total is None or any(item.outcome is None for item in items)
    is_complete = checkpoint.status is RunStatus.COMPLETED
    return JobProgress(
        iteration=iteration,
        phase="complete" if is_complete else "map" if is_mapping else "reduce",
        items_done=len(done),
        items_failed=len(failed),
        items_total=total,
        reduce_round=max(map(_round_of, groups), default=0),
        groups_done=sum(group.outcome == "completed" for group in groups),
    )


def _job_of(checkpoint: Checkpoint) -> _Job | None:
    """Return the job of a run, or the job within it that began last; None without a job."""
    iteration, prefix = None, ""
    if checkpoint.kind == "iterative":
        iteration = sum(
            not (path := StepPath(step)).flow and path.name == "round"
            for step in checkpoint.metadata.attempts
        )
        prefix = step_path("", "round", iteration) if iteration else ""
    parts = [part for part in _parts_of(checkpoint) if part.job[0].startswith(prefix)]
    if not parts and checkpoint.kind not in ("mapreduce", "iterative"):
        return None
    # The run itself, or the job within it that began last.
    is_run = checkpoint.kind == "mapreduce" or not parts
    job = (prefix, 1) if is_run else parts[-1].job
    items = [part for part in parts if part.job == job and part.phase == "map"]
    groups = [part for part in parts if part.job == job and part.phase == "reduce"]
    return _Job(iteration, items, groups, _end_of_map(checkpoint, job))


def job_history(checkpoint: Checkpoint) -> tuple[JobPhase, ...]:
    """Return when the phases of a job happened that have begun, in order. Pure.

    The job is that of `job_progress`; without one the history is empty.
    """
    job = _job_of(checkpoint)
    return () if job is None else tuple(_phases(checkpoint, job))


def _phases(checkpoint: Checkpoint, job: _Job) -> Iterator[JobPhase]:
    _, items, groups, mapped = job
    ends = {step.step: step.completed_at for step in checkpoint.completed_steps}
    begins = {step.step: step.completed_at - step.duration for step in checkpoint.completed_steps}
    if isinstance(checkpoint.state, BeforeStep):
        # The newest step may be the only one of its phase.
        begins.setdefault(checkpoint.state.step, checkpoint.state.at)

    def times(parts: Iterable[_Part], of: dict[str, float]) -> list[float]:
        return [of[part.path] for part in parts if part.path in of]

    began = times(items, begins) + ([] if mapped is None else [begins[mapped.step]])
    if began:
        yield JobPhase("map", 0, min(began), None if mapped is None else mapped.completed_at)
    for number in sorted({_round_of(group) for group in groups}):
        of_round = [group for group in groups if _round_of(group) == number]
        later = times((group for group in groups if _round_of(group) > number), ends)
        # Once all items are mapped, the groups that are left are reduced round by round.
        is_over = checkpoint.status is RunStatus.COMPLETED or (
            mapped is not None and any(end > mapped.completed_at for end in later)
        )
        if began := times(of_round, begins):
            ended = max(times(of_round, ends), default=None) if is_over else None
            yield JobPhase("reduce", number, min(began), ended)


def _round_of(group: _Part) -> int:
    return int(group.key.partition(".")[0])


class _Part(NamedTuple):
    """An item or a group that has begun. Its job is identified by the flow and the occurrence there."""

    job: tuple[str, int]
    phase: str
    key: str
    outcome: str | None
    path: str


def _parts_of(checkpoint: Checkpoint) -> Iterator[_Part]:
    outcomes = {item.step: item.outcome for item in checkpoint.history}
    for path in checkpoint.metadata.attempts:
        child = StepPath(path).flow
        phase = child.operator
        if child.key is not None and phase.name in ("map", "reduce"):
            job = (str(phase.flow), phase.occurrence)
            yield _Part(job, phase.name, child.key, outcomes.get(path), path)


def _end_of_map(checkpoint: Checkpoint, job: tuple[str, int]) -> CompletedStep | None:
    """Return the step that ended the map phase of a job, and yielded the number of items; or None."""
    flow, occurrence = job
    path = step_path(flow, "mapped", occurrence)
    for step in reversed(checkpoint.completed_steps):
        if step.step == path and isinstance(step.output, int):
            return step
    return None
