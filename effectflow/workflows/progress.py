"""The progress of a map-reduce or iterative run, read from its checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.store import RunStatus

_ROUND = re.compile(r"round(?:#\d+)?")
_PART = re.compile(
    r"(?P<flow>(?:.*/)?)(?P<phase>map|reduce)(?P<again>(?:#\d+)?)\[(?P<key>[^]]*)\]/[^/]+",
    re.DOTALL,
)


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
    iteration = None
    if checkpoint.kind == "iterative":
        iteration = sum(_ROUND.fullmatch(step) is not None for step in checkpoint.metadata.attempts)
    parts = _parts_of(checkpoint, _prefix(iteration))
    if not parts and checkpoint.kind not in ("mapreduce", "iterative"):
        return None
    job = _job_of(checkpoint, iteration, parts)
    outcomes = {item.step: item.outcome for item in checkpoint.history}
    ours = [part for part in parts if _place(part) == job]
    items = [(part["key"], outcomes.get(part[0])) for part in ours if part["phase"] == "map"]
    groups = [(part["key"], outcomes.get(part[0])) for part in ours if part["phase"] == "reduce"]
    done = {key for key, outcome in items if outcome == "completed"}
    failed = {key for key, outcome in items if outcome == "failed"} - done
    total = _number_of_items(checkpoint, job)
    is_mapping = total is None or any(outcome is None for _, outcome in items)
    is_complete = checkpoint.status is RunStatus.COMPLETED
    return JobProgress(
        iteration=iteration,
        phase="complete" if is_complete else "map" if is_mapping else "reduce",
        items_done=len(done),
        items_failed=len(failed),
        items_total=total,
        reduce_round=max((int(key.partition(".")[0]) for key, _ in groups), default=0),
        groups_done=sum(outcome == "completed" for _, outcome in groups),
    )


def _prefix(iteration: int | None) -> str:
    """Return the prefix of the paths of the steps in a round."""
    if not iteration:
        return ""
    return "round/" if iteration == 1 else f"round#{iteration}/"


def _parts_of(checkpoint: Checkpoint, prefix: str) -> list[re.Match[str]]:
    """Return the items and groups below a prefix that have begun, in that order."""
    found = (_PART.fullmatch(path) for path in checkpoint.metadata.attempts)
    return [part for part in found if part and part["flow"].startswith(prefix)]


def _place(part: re.Match[str]) -> tuple[str, str]:
    """Identify the job of an item or a group by its flow and its occurrence there."""
    return part["flow"], part["again"]


def _job_of(
    checkpoint: Checkpoint, iteration: int | None, parts: list[re.Match[str]]
) -> tuple[str, str]:
    """Return the job to report: the run itself, or the job within it that began last."""
    if checkpoint.kind == "mapreduce" or not parts:
        return _prefix(iteration), ""
    return _place(parts[-1])


def _number_of_items(checkpoint: Checkpoint, job: tuple[str, str]) -> int | None:
    flow, again = job
    for step in reversed(checkpoint.completed_steps):
        if step.step == f"{flow}mapped{again}" and isinstance(step.output, int):
            return step.output
    return None
