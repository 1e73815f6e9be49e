"""How far a map-reduce or iterative run has come, told from its checkpoint alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.store import RunStatus

__all__ = ["JobProgress", "job_progress"]

_ROUND = re.compile(r"round(?:#\d+)?")
_ITEM = re.compile(r"map\[([^]]*)\]/[^/]+")
_GROUP = re.compile(r"reduce\[(\d+)\.\d+\]/[^/]+")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a job stands.

    Attributes:
        iteration: which round of an iterative run it is in, from 1, or 0 before the first; None for
            other runs.
        phase: "map" while items are worked on, then "reduce", and at last "complete".
        items_done: how many items are mapped.
        items_failed: how many have failed, and are dead letters or what stopped the job.
        items_total: how many there are; None until the source was read to its end.
        reduce_round: the highest round of the tree of groups that was begun; 0 before the first.
        groups_done: how many groups are reduced.
    """

    iteration: int | None
    phase: Literal["map", "reduce", "complete"]
    items_done: int
    items_failed: int
    items_total: int | None
    reduce_round: int
    groups_done: int


def job_progress(checkpoint: Checkpoint) -> JobProgress | None:
    """Where a map-reduce or iterative run stands; of an iterative one, the round it is in. Pure.

    None for a run of another kind.
    """
    if checkpoint.kind not in ("mapreduce", "iterative"):
        return None
    iteration = None
    if checkpoint.kind == "iterative":
        iteration = sum(_ROUND.fullmatch(step) is not None for step in checkpoint.metadata.attempts)
    steps = _steps_of(checkpoint, _prefix(iteration))
    items = [(_ITEM.fullmatch(step), outcome) for step, outcome in steps.items()]
    done = {item[1] for item, outcome in items if item and outcome == "completed"}
    failed = {item[1] for item, outcome in items if item and outcome == "failed"} - done
    groups = [(_GROUP.fullmatch(step), outcome) for step, outcome in steps.items()]
    total = _number_of_items(checkpoint, _prefix(iteration))
    is_mapping = total is None or any(item and outcome is None for item, outcome in items)
    is_complete = checkpoint.status is RunStatus.COMPLETED
    return JobProgress(
        iteration=iteration,
        phase="complete" if is_complete else "map" if is_mapping else "reduce",
        items_done=len(done),
        items_failed=len(failed),
        items_total=total,
        reduce_round=max((int(group[1]) for group, _ in groups if group), default=0),
        groups_done=sum(group is not None and outcome == "completed" for group, outcome in groups),
    )


def _prefix(iteration: int | None) -> str:
    """What the paths of this round's steps begin with."""
    if not iteration:
        return ""
    return "round/" if iteration == 1 else f"round#{iteration}/"


def _steps_of(checkpoint: Checkpoint, prefix: str) -> dict[str, str | None]:
    """The steps below a prefix that were begun, and how they ended, if they did."""
    outcomes = {item.step: item.outcome for item in checkpoint.history}
    return {
        step.removeprefix(prefix): outcomes.get(step)
        for step in checkpoint.metadata.attempts
        if step.startswith(prefix)
    }


def _number_of_items(checkpoint: Checkpoint, prefix: str) -> int | None:
    for step in reversed(checkpoint.completed_steps):
        if step.step == f"{prefix}mapped" and isinstance(step.output, int):
            return step.output
    return None
