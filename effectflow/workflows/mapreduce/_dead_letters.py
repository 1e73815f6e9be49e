"""What a run records about dead letters: which items it set aside, and how often it retried them."""

from __future__ import annotations

from typing import Any

from returns.maybe import Nothing

from effectflow.checkpoint.live_run import REOPENED
from effectflow.effects.scope import Scope, observe
from effectflow.workflows.mapreduce._results import DeadLetter

_SET_ASIDE = "dead_letter"


def requested_retries(scope: Scope) -> int:
    """Return how often `retry_dead_letters` was called for this run."""
    path, recorder = scope.next_path(REOPENED), scope.decisions
    return 0 if recorder is None else recorder.recall(path).value_or(0)


def set_aside(letter: DeadLetter[Any], scope: Scope) -> None:
    """Record that an item is a dead letter. This settles its failure: a resume does not retry it."""
    observe(scope, _SET_ASIDE, lambda: {"attempts": letter.attempts})


def was_set_aside(scope: Scope) -> bool:
    """Return whether the item is recorded as a dead letter at this place."""
    recorder = scope.decisions
    return recorder is not None and recorder.recall(scope.next_path(_SET_ASIDE)) is not Nothing
