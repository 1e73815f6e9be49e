"""How a life of a run ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.schema import frozen
from effectflow.effects.trails import TypedFailure


@frozen
class Returned:
    """The body has returned its output."""

    output: Any


@dataclass(frozen=True, slots=True)
class FailedWith:
    """The run fails: its body has failed, or a resume cannot make up for what has happened in it."""

    failure: TypedFailure


@dataclass(frozen=True, slots=True)
class Raised:
    """The body has raised an exception, usually a defect."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A message has cancelled the body."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """A worker suspends the run, because all of its fibers wait.

    Attributes:
        until: when the first fiber continues by itself, in seconds since the epoch; infinite
            if none does.
        waits_for: what the fibers wait for, in words.
        seen: the number of the newest message that the run had read.
    """

    until: float
    waits_for: str
    seen: int


@dataclass(frozen=True, slots=True)
class CarriedOn:
    """The run is carried on in another life of this process, because a message is to cancel it.

    The first life of a run has no scope in which only the run can be cancelled: most runs need none.
    """


@dataclass(frozen=True, slots=True)
class PausedBy:
    """Someone has paused the run. `by` says who."""

    by: str


@dataclass(frozen=True, slots=True)
class CutShort:
    """The life ends with an exception that the journal does not record. A resume may not meet it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Halted:
    """The run cannot be continued or saved here. What its journal has stays."""

    error: CheckpointError


Ending: TypeAlias = (
    Returned
    | FailedWith
    | Raised
    | Cancelled
    | Suspension
    | PausedBy
    | CarriedOn
    | CutShort
    | Halted
)
"""How a life ends, other than by an interruption, which is raised: a cancellation, or Ctrl-C."""


def ending_of(outcome: Any) -> Returned | FailedWith:
    """Return the ending with the outcome of a body: its output, or `TypedFailure`."""
    return FailedWith(outcome) if outcome.__class__ is TypedFailure else Returned(outcome)
