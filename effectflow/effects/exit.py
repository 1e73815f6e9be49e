"""How an effect ended, as a finalizer is told.

`Success` and `Failure` are those of `returns`; the other two are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from returns.result import Result

__all__ = ["Defect", "Exit", "Interruption"]

E = TypeVar("E")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Defect:
    """An exception that nobody declared: a bug."""

    exception: Exception


@dataclass(frozen=True, slots=True)
class Interruption:
    """The backend's cancellation, or whatever else ends a run from outside."""

    cause: BaseException


Exit: TypeAlias = Result[A, E] | Defect | Interruption
"""How an effect ended: `Success(value)`, `Failure(error)`, `Defect` or `Interruption`."""
