"""How an effect ended, as finalizers receive it.

`Success` and `Failure` are the classes of `returns`.
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
    """An undeclared exception: a bug."""

    exception: Exception


@dataclass(frozen=True, slots=True)
class Interruption:
    """The backend's cancellation, or another exception that ends a run from outside."""

    cause: BaseException


Exit: TypeAlias = Result[A, E] | Defect | Interruption
"""How an effect ended: `Success(value)`, `Failure(error)`, `Defect` or `Interruption`."""
