"""What a journal says about each step, for a run that reaches the step again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

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

__all__ = ["Past", "PastStep", "Unsettled", "flow_of", "read_past", "segments_of"]


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
    unsettled = Unsettled()
    for entry in entries:
        match entry:
            case BeforeStep(path, attempt, arguments):
                unsettled.go_on(path)
                unsettled.forget(path)
                past.steps[path] = PastStep(attempt, arguments)
            case Completed(path, output):
                unsettled.go_on(path)
                step = past.steps.setdefault(path, PastStep(1))
                step.is_completed, step.output = True, output
            case Recorded(path, value, _, is_failure):
                unsettled.go_on(path)
                if is_failure:
                    unsettled.add(path, partial(past.recorded.__setitem__, path, value))
                else:
                    past.recorded[path] = value
            case Failed(path, error, retryable):
                step = past.steps.setdefault(path, PastStep(1))
                step.error, step.retryable = error, retryable
                unsettled.add(path, partial(setattr, step, "was_handled", True))
            case Resumed():
                unsettled = Unsettled()
            case _:
                pass
    return past


_DEPTH = 8
"""How many flows around a failure it is kept by. Deeper ones share a place, as nobody nests so deep."""


class Unsettled:
    """Failures that the workflow may yet handle, and what is to be done once it has.

    They are kept by the flows that they are in, so that an entry looks only at those of its own flow:
    thousands may wait side by side.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], object]] = {}
        self._in_flow: dict[str, dict[str, None]] = {}

    def add(self, path: str, once_handled: Callable[[], object]) -> None:
        """The step or operator at this path has failed."""
        self._waiting[path] = once_handled
        for flow in _outer_flows(path):
            self._in_flow.setdefault(flow, {})[path] = None

    def forget(self, path: str) -> None:
        """It is run again."""
        if path in self._waiting:
            self._remove(path)

    def go_on(self, path: str) -> None:
        """An entry at this path shows that its flow, and so every flow within it, has gone on."""
        if not self._waiting:
            return
        flow = flow_of(path)
        for failed in list(self._in_flow.get(_outer_flows(path)[-1], ())):
            inside = flow in ("", flow_of(failed)) or failed.startswith(f"{flow}/")
            if inside and failed != path and not _is_within(failed, path):
                self._remove(failed)()

    def _remove(self, path: str) -> Callable[[], object]:
        for flow in _outer_flows(path):
            inside = self._in_flow[flow]
            del inside[path]
            if not inside:
                del self._in_flow[flow]
        return self._waiting.pop(path)


def _outer_flows(path: str) -> list[str]:
    """The flows that a path is in, from the outside in, but for those that are too deep."""
    flows, depth = [""], 0
    for index, character in enumerate(path):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "/" and depth == 0:
            flows.append(path[:index])
            if len(flows) == _DEPTH:
                break
    return flows


def _is_within(path: str, outer: str) -> bool:
    """Whether a path is of what runs inside the step or operator at another."""
    return path.startswith((f"{outer}/", f"{outer}["))


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


def segments_of(path: str) -> tuple[str, ...]:
    """The segments of a path, from the outside in.

    Example:
        >>> segments_of("charge/par_traverse[a/b]/quote#2")
        ('charge', 'par_traverse[a/b]', 'quote#2')
    """
    segments: list[str] = []
    while path:
        flow = flow_of(path)
        segments.append(path[len(flow) + 1 if flow else 0 :])
        path = flow
    return tuple(reversed(segments))
