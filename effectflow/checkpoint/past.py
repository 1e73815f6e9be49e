"""What a journal says about each step, for a run that reaches the step again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Recorded,
    Resumed,
)
from effectflow.checkpoint.values import Tree

__all__ = ["Past", "PastStep", "flow_of", "read_past"]


@dataclass(slots=True)
class PastStep:
    """What is known of one step.

    Attributes:
        attempts: how often it was begun.
        arguments: what it was last called with.
        output: what it gave, if `is_completed`.
        error: what it failed with, if that is how its last attempt ended.
        retryable: whether a resume runs it again after that failure.
        was_handled: whether the workflow went on after that failure, so that it is settled.
    """

    attempts: int = 0
    arguments: Arguments | None = None
    is_completed: bool = False
    output: Tree = None
    error: ErrorRecord | None = None
    retryable: bool = True
    was_handled: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether it was begun and nobody knows how it ended."""
        return self.attempts > 0 and not self.is_completed and self.error is None


@dataclass(slots=True)
class Past:
    """The steps of a journal, and the values that were recorded between them, by path."""

    steps: dict[str, PastStep]
    recorded: dict[str, Tree]


def read_past(entries: Iterable[Entry]) -> Past:
    """What a journal says about each step. Pure."""
    past = Past({}, {})
    unsettled: dict[str, PastStep] = {}
    for entry in entries:
        match entry:
            case BeforeStep(path, attempt, arguments):
                _settle(unsettled, path)
                unsettled.pop(path, None)
                past.steps[path] = PastStep(attempt, arguments)
            case Completed(path, output):
                _settle(unsettled, path)
                step = past.steps.setdefault(path, PastStep(1))
                step.is_completed, step.output = True, output
            case Recorded(path, value):
                _settle(unsettled, path)
                past.recorded[path] = value
            case Failed(path, error, retryable):
                step = past.steps.setdefault(path, PastStep(1))
                step.error, step.retryable = error, retryable
                unsettled[path] = step
            case Resumed():
                unsettled.clear()
            case _:
                pass
    return past


def flow_of(path: str) -> str:
    """The sequential flow that a step is in: its path without the last segment.

    A `/` within brackets is part of a key, not a separator.
    """
    depth = 0
    for index in range(len(path) - 1, -1, -1):
        character = path[index]
        if character == "]":
            depth += 1
        elif character == "[":
            depth -= 1
        elif character == "/" and depth == 0:
            return path[:index]
    return ""


def _settle(unsettled: dict[str, PastStep], path: str) -> None:
    """An entry at `path` shows that its flow, and so every flow within it, has gone on."""
    if not unsettled:
        return
    flow = flow_of(path)
    for failed in list(unsettled):
        inside = flow in ("", flow_of(failed)) or failed.startswith(f"{flow}/")
        if inside and failed != path and not failed.startswith(f"{path}/"):
            unsettled.pop(failed).was_handled = True
