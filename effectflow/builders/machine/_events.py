"""The events of state machines, for observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from effectflow.builders.events import WorkflowEvent


@dataclass(frozen=True, slots=True)
class _TransitionAttempt(WorkflowEvent):
    """One attempt of a state machine at a transition.

    Attributes:
        transition: the transition's name.
        source: the name of the state before.
        attempt: the number of the attempt, from 1. It continues after `Retry`.
        step: the path of this attempt.
    """

    transition: str
    source: str
    attempt: int
    step: str


@dataclass(frozen=True, slots=True)
class TransitionStarted(_TransitionAttempt):
    """An attempt at a transition begins. Skipped attempts have no event."""


@dataclass(frozen=True, slots=True)
class TransitionEnded(_TransitionAttempt):
    """An attempt at a transition ended.

    Attributes:
        target: the name of the state that the machine moved or aborted to; None if it stays.
    """

    outcome: Literal["moved", "retry", "abort", "failed", "interrupted"]
    target: str | None = None
