"""Dead letters, tried again: how often that was asked for is part of a run's journal."""

from __future__ import annotations

from typing import Any

from effectflow.checkpoint.live_run import REOPENED
from effectflow.effects.scope import Scope
from effectflow.workflows.mapreduce.results import JobResult

__all__ = ["has_dead_letters", "retries_asked_for"]


def has_dead_letters(result: JobResult[Any, Any]) -> bool:
    """Whether there is anything to be tried again."""
    return bool(result.dead_letters)


def retries_asked_for(scope: Scope) -> int:
    """How often the dead letters of this run are to be tried again."""
    path, recorder = scope.next_path(REOPENED), scope.decisions
    return 0 if recorder is None else recorder.recall(path).value_or(0)
