"""How far a map-reduce or iterative run has come, told from its checkpoint alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.store import RunStatus

__all__ = ["JobProgress", "job_progress"]

_ROUND = re.compile(r"round(?:#\d+)?")
_PART = re.compile(
    r"(?P<flow>(?:.*/)?)(?P<phase>map|reduce)(?P<again>(?:#\d+)?)\[(?P<key>[^]]*)\]/[^/]+",
    re.DOTALL,
)


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

    A job that is part of another workflow is found as well: the one that was begun last. Its phase is
    "complete" once the run is. None for a run without a job.
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
    """What the paths of this round's steps begin with."""
    if not iteration:
        return ""
    return "round/" if iteration == 1 else f"round#{iteration}/"


def _parts_of(checkpoint: Checkpoint, prefix: str) -> list[re.Match[str]]:
    """The items and groups below a prefix that were begun, in that order."""
    found = (_PART.fullmatch(path) for path in checkpoint.metadata.attempts)
    return [part for part in found if part and part["flow"].startswith(prefix)]


def _place(part: re.Match[str]) -> tuple[str, str]:
    """Which job an item or a group is of: the flow that it is in, and which one there."""
    return part["flow"], part["again"]


def _job_of(
    checkpoint: Checkpoint, iteration: int | None, parts: list[re.Match[str]]
) -> tuple[str, str]:
    """The job that is told about: the run itself, or the last one that was begun in it."""
    if checkpoint.kind == "mapreduce" or not parts:
        return _prefix(iteration), ""
    return _place(parts[-1])


def _number_of_items(checkpoint: Checkpoint, job: tuple[str, str]) -> int | None:
    flow, again = job
    for step in reversed(checkpoint.completed_steps):
        if step.step == f"{flow}mapped{again}" and isinstance(step.output, int):
            return step.output
    return None
