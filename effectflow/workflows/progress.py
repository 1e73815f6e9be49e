"""The progress of a map-reduce or iterative run, read from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.paths import StepPath, step_path


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


def job_progress(checkpoint: Checkpoint) -> JobProgress | None:
    """Return the progress of a map-reduce run, or of the current round of an iterative one. Pure.

    For another workflow, return the progress of the job within it that began last, which is "complete"
    once the run is; None without a job.
    """
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
    done = {item.key for item in items if item.outcome == "completed"}
    failed = {item.key for item in items if item.outcome == "failed"} - done
    total = _number_of_items(checkpoint, job)
    is_mapping = total is None or any(item.outcome is None for item in items)
    is_complete = checkpoint.status is RunStatus.COMPLETED
    return JobProgress(
        iteration=iteration,
        phase="complete" if is_complete else "map" if is_mapping else "reduce",
        items_done=len(done),
        items_failed=len(failed),
        items_total=total,
        reduce_round=max((int(group.key.partition(".")[0]) for group in groups), default=0),
        groups_done=sum(group.outcome == "completed" for group in groups),
    )


class _Part(NamedTuple):
    """An item or a group that has begun. Its job is identified by the flow and the occurrence there."""

    job: tuple[str, int]
    phase: str
    key: str
    outcome: str | None


def _parts_of(checkpoint: Checkpoint) -> Iterator[_Part]:
    outcomes = {item.step: item.outcome for item in checkpoint.history}
    for path in checkpoint.metadata.attempts:
        child = StepPath(path).flow
        phase = child.operator
        if child.key is not None and phase.name in ("map", "reduce"):
            job = (str(phase.flow), phase.occurrence)
            yield _Part(job, phase.name, child.key, outcomes.get(path))


def _number_of_items(checkpoint: Checkpoint, job: tuple[str, int]) -> int | None:
    flow, occurrence = job
    path = step_path(flow, "mapped", occurrence)
    for step in reversed(checkpoint.completed_steps):
        if step.step == path and isinstance(step.output, int):
            return step.output
    return None
