"""How one attempt at a transition may end: the three values that an action gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Abort", "Moved", "Outcome", "Retry"]

S = TypeVar("S", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moved(Generic[S]):
    """It succeeded: the machine is now in `state`, which must be one that the transition leads to."""

    state: S


@dataclass(frozen=True, slots=True)
class Retry:
    """Not yet: the machine stays where it is, and the same transition is attempted again.

    `feedback` says why. The next attempt can read it, by `transition_info()`.
    """

    feedback: str


@dataclass(frozen=True, slots=True)
class Abort(Generic[S]):
    """It cannot succeed: the machine is now in `state`, and its history keeps the `reason`."""

    reason: str
    state: S


Outcome: TypeAlias = Moved[T] | Retry | Abort[T]
"""What an action gives: `Outcome[Order]` is `Moved[Order] | Retry | Abort[Order]`."""
