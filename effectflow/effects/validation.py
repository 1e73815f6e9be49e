"""Validation: checks that collect all errors, in order, instead of stopping at the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, cast, overload

from returns.result import Failure, Result, Success

from effectflow.effects import nodes
from effectflow.effects.effect import Effect

E = TypeVar("E", covariant=True)
A = TypeVar("A", covariant=True)
E2 = TypeVar("E2")
B = TypeVar("B")
Env = TypeVar("Env")
E1 = TypeVar("E1")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
E5 = TypeVar("E5")
E6 = TypeVar("E6")
E7 = TypeVar("E7")
E8 = TypeVar("E8")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
A5 = TypeVar("A5")
A6 = TypeVar("A6")
A7 = TypeVar("A7")
A8 = TypeVar("A8")


class Validation(Generic[E, A]):
    """Either `Valid(value)` or `Invalid(errors)`. No other class derives from it.

    `Result` and effects stop at the first error; `Validation.all` collects the errors of all parts. The
    idea comes from Haskell's `Validation` and from Stillwater, a Rust library.

    Example:
        >>> from effectflow import Invalid, Valid, Validation
        >>> def positive(n: int) -> Validation[str, int]:
        ...     return Valid(n) if n > 0 else Invalid([f"{n} is not positive"])
        >>> Validation.all(positive(1), positive(2))
        Valid(value=(1, 2))
        >>> Validation.all(positive(-1), positive(2), positive(-3))
        Invalid(errors=('-1 is not positive', '-3 is not positive'))
    """

    __slots__ = ()

    @overload
    @staticmethod
    def all(p1: Validation[E1, A1], /) -> Validation[E1, tuple[A1]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1], p2: Validation[E2, A2], /
    ) -> Validation[E1 | E2, tuple[A1, A2]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1], p2: Validation[E2, A2], p3: Validation[E3, A3], /
    ) -> Validation[E1 | E2 | E3, tuple[A1, A2, A3]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        /,
    ) -> Validation[E1 | E2 | E3 | E4, tuple[A1, A2, A3, A4]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        p5: Validation[E5, A5],
        /,
    ) -> Validation[E1 | E2 | E3 | E4 | E5, tuple[A1, A2, A3, A4, A5]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        p5: Validation[E5, A5],
        p6: Validation[E6, A6],
        /,
    ) -> Validation[E1 | E2 | E3 | E4 | E5 | E6, tuple[A1, A2, A3, A4, A5, A6]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        p5: Validation[E5, A5],
        p6: Validation[E6, A6],
        p7: Validation[E7, A7],
        /,
    ) -> Validation[E1 | E2 | E3 | E4 | E5 | E6 | E7, tuple[A1, A2, A3, A4, A5, A6, A7]]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        p5: Validation[E5, A5],
        p6: Validation[E6, A6],
        p7: Validation[E7, A7],
        p8: Validation[E8, A8],
        /,
    ) -> Validation[
        E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8, tuple[A1, A2, A3, A4, A5, A6, A7, A8]
    ]: ...
    @overload
    @staticmethod
    def all(*parts: Validation[E2, B]) -> Validation[E2, tuple[B, ...]]: ...
    @staticmethod
    def all(*parts: Validation[Any, Any]) -> Validation[Any, Any]:
        """Return all values as a tuple, or all errors, in the order of the parts."""
        errors = [error for part in parts if isinstance(part, Invalid) for error in part.errors]
        if errors:
            return Invalid(errors)
        return Valid(tuple(cast("Valid[Any]", part).value for part in parts))

    @staticmethod
    def traverse(
        items: Iterable[B], f: Callable[[B], Validation[E2, A2]]
    ) -> Validation[E2, list[A2]]:
        """Return `f(item)` for every item: all values as a list, or all errors."""
        return Validation.all(*[f(item) for item in items]).map(list)

    @staticmethod
    def from_result(result: Result[B, E2]) -> Validation[E2, B]:
        """Return `Valid` for a `Success`, and `Invalid` with one error for a `Failure`."""
        if isinstance(result, Success):
            return Valid(result.unwrap())
        return Invalid([result.failure()])

    @staticmethod
    def from_effect(effect: Effect[Env, E2, B]) -> Effect[Env, Never, Validation[E2, B]]:
        """Return an effect that yields how another one ends, and never fails."""
        return effect.result().map(Validation.from_result)

    def map(self, f: Callable[[A], B]) -> Validation[E, B]:
        """Apply a function to the value."""
        return Valid(f(self.value)) if isinstance(self, Valid) else cast("Validation[E, B]", self)

    def map_err(self, f: Callable[[E], E2]) -> Validation[E2, A]:
        """Apply a function to each error."""
        if isinstance(self, Invalid):
            return Invalid([f(error) for error in self.errors])
        return cast("Validation[E2, A]", self)

    def and_then(self: Validation[E2, A], f: Callable[[A], Validation[E2, B]]) -> Validation[E2, B]:
        """Continue with `f(value)`. Errors are not collected here, because `f` needs a value."""
        return f(self.value) if isinstance(self, Valid) else cast("Validation[E2, B]", self)

    def to_result(self) -> Result[A, tuple[E, ...]]:
        """Return a `Success` with the value, or a `Failure` with all errors."""
        if isinstance(self, Invalid):
            return Failure(self.errors)
        return Success(cast("Valid[A]", self).value)

    def to_effect(self) -> Effect[object, tuple[E, ...], A]:
        """Return an effect that yields the value, or fails with all errors."""
        if isinstance(self, Invalid):
            return nodes.Fail(self.errors)
        return nodes.Pure(cast("Valid[A]", self).value)


@dataclass(frozen=True, slots=True)
class Valid(Validation[Never, A]):
    """A value without errors."""

    value: A


@dataclass(frozen=True, slots=True)
class Invalid(Validation[E, Never]):
    """At least one error, in order."""

    errors: tuple[E, ...]

    def __init__(self, errors: Iterable[E]) -> None:
        object.__setattr__(self, "errors", tuple(errors))
        if not self.errors:
            raise ValueError("Invalid needs at least one error")
