"""The events of state machines, for observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from effectflow.checkpoint.observers import CheckpointEvent


@dataclass(frozen=True, slots=True)
class _TransitionAttempt(CheckpointEvent):
    """One attempt of a state machine at a transition.

    Attributes:
        run_id: the run; None if the machine runs without a store.
        machine: the machine's name.
        transition: the transition's name.
        source: the name of the state before.
        attempt: the number of the attempt, from 1. It continues after `Retry`.
        step: the path of this attempt.
    """

    run_id: str | None
    machine: str
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
