"""Validation: checks that collect all errors, in order, instead of stopping at the first one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, cast, final, overload

from returns.result import Failure, Result, Success

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.type_variables import (
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    A8,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
)

E = TypeVar("E", covariant=True)
A = TypeVar("A", covariant=True)
B = TypeVar("B")
C = TypeVar("C")
V = TypeVar("V")
Env = TypeVar("Env")


class Validation(ABC, Generic[E, A]):
    """Either `Valid(value)` or `Invalid(errors)`. No other class derives from it.

    `Result` and effects stop at the first error; `Validation.all` collects the errors of all parts. The
    idea comes from Haskell's `Validation` and from Stillwater, a Rust library.

    Annotate a check with `Valid[A] | Invalid[E]`, as all functions here do. Type checkers then know that
    a `match` over the two classes is complete. `Validation[E, A]` is their common base, for parameters.

    Example:
        >>> from effectflow.effects import Invalid, Valid, Validation
        >>> def positive(n: int) -> Valid[int] | Invalid[str]:
        ...     return Valid(n) if n > 0 else Invalid.one(f"{n} is not positive")
        >>> Validation.all(positive(1), positive(2))
        Valid(value=(1, 2))
        >>> Validation.all(positive(-1), positive(2), positive(-3))
        Invalid(errors=('-1 is not positive', '-3 is not positive'))
    """

    __slots__ = ()

    @overload
    @staticmethod
    def all(p1: Validation[E1, A1], /) -> Valid[tuple[A1]] | Invalid[E1]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1], p2: Validation[E2, A2], /
    ) -> Valid[tuple[A1, A2]] | Invalid[E1 | E2]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1], p2: Validation[E2, A2], p3: Validation[E3, A3], /
    ) -> Valid[tuple[A1, A2, A3]] | Invalid[E1 | E2 | E3]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        /,
    ) -> Valid[tuple[A1, A2, A3, A4]] | Invalid[E1 | E2 | E3 | E4]: ...
    @overload
    @staticmethod
    def all(
        p1: Validation[E1, A1],
        p2: Validation[E2, A2],
        p3: Validation[E3, A3],
        p4: Validation[E4, A4],
        p5: Validation[E5, A5],
        /,
    ) -> Valid[tuple[A1, A2, A3, A4, A5]] | Invalid[E1 | E2 | E3 | E4 | E5]: ...
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
    ) -> Valid[tuple[A1, A2, A3, A4, A5, A6]] | Invalid[E1 | E2 | E3 | E4 | E5 | E6]: ...
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
    ) -> Valid[tuple[A1, A2, A3, A4, A5, A6, A7]] | Invalid[E1 | E2 | E3 | E4 | E5 | E6 | E7]: ...
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
    ) -> (
        Valid[tuple[A1, A2, A3, A4, A5, A6, A7, A8]]
        | Invalid[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8]
    ): ...
    @overload
    @staticmethod
    def all(*parts: Validation[E2, B]) -> Valid[tuple[B, ...]] | Invalid[E2]: ...
    @staticmethod
    def all(*parts: Validation[Any, Any]) -> Valid[Any] | Invalid[Any]:
        """Return all values as a tuple, or all errors, in the order of the parts."""
        errors = [error for part in parts if isinstance(part, Invalid) for error in part.errors]
        if errors:
            return Invalid(errors)
        return Valid(tuple(cast("Valid[Any]", part).value for part in parts))

    @staticmethod
    def traverse(
        items: Iterable[B], f: Callable[[B], Validation[E2, A2]]
    ) -> Valid[list[A2]] | Invalid[E2]:
        """Return `f(item)` for every item: all values as a list, or all errors."""
        return Validation.all(*[f(item) for item in items]).map(list)

    @overload
    @staticmethod
    def from_result(result: Result[B, tuple[E2, ...]]) -> Valid[B] | Invalid[E2]: ...
    @overload
    @staticmethod
    def from_result(result: Result[B, E2]) -> Valid[B] | Invalid[E2]: ...
    @staticmethod
    def from_result(result: Result[Any, Any]) -> Valid[Any] | Invalid[Any]:
        """Return `Valid` for a `Success`, and `Invalid` for a `Failure`: the inverse of `to_result`.

        A tuple in the failure has all errors. Anything else is one error.
        """
        if isinstance(result, Success):
            return Valid(result.unwrap())
        error = result.failure()
        return (
            Invalid(cast("tuple[Any, ...]", error))
            if isinstance(error, tuple)
            else Invalid.one(error)
        )

    @overload
    @staticmethod
    def from_effect(
        effect: Effect[Env, tuple[E2, ...], B],
    ) -> Effect[Env, Never, Valid[B] | Invalid[E2]]: ...
    @overload
    @staticmethod
    def from_effect(effect: Effect[Env, E2, B]) -> Effect[Env, Never, Valid[B] | Invalid[E2]]: ...
    @staticmethod
    def from_effect(effect: Effect[Env, Any, Any]) -> Effect[Env, Never, Any]:
        """Return an effect that yields the end of another one as a validation, and never fails."""
        return effect.result().map(Validation.from_result)

    @abstractmethod
    def map(self, f: Callable[[A], B]) -> Valid[B] | Invalid[E]:
        """Apply a function to the value."""

    @abstractmethod
    def map_err(self, f: Callable[[E], E2]) -> Valid[A] | Invalid[E2]:
        """Apply a function to each error."""

    @abstractmethod
    def and_then(self, f: Callable[[A], Validation[E2, B]]) -> Validation[E | E2, B]:
        """Continue with `f(value)`. Errors are not collected here, because `f` needs a value."""

    @abstractmethod
    def fold(self, on_valid: Callable[[A], B], on_invalid: Callable[[tuple[E, ...]], C]) -> B | C:
        """Return `on_valid(value)`, or `on_invalid(errors)` with all errors.

        Example:
            >>> from effectflow.effects import Invalid
            >>> Invalid(["too short", "no digit"]).fold(str, ", ".join)
            'too short, no digit'
        """

    @abstractmethod
    def unwrap_or(self, default: B) -> A | B:
        """Return the value, or `default` instead of errors."""

    @abstractmethod
    def to_result(self) -> Result[A, tuple[E, ...]]:
        """Return a `Success` with the value, or a `Failure` with all errors as a tuple."""

    def to_effect(self) -> Effect[object, tuple[E, ...], A]:
        """Return an effect that yields the value, or fails with all errors as a tuple."""
        return self.fold(nodes.Pure, nodes.Fail)


@final
@dataclass(frozen=True, slots=True)
class Valid(Validation[Never, A]):
    """A value without errors."""

    value: A

    def map(self, f: Callable[[A], B]) -> Valid[B]:
        return Valid(f(self.value))

    def map_err(self, f: Callable[[Never], object]) -> Valid[A]:
        return self

    def and_then(self, f: Callable[[A], V]) -> V:
        return f(self.value)

    def fold(self, on_valid: Callable[[A], B], on_invalid: Callable[[Never], object]) -> B:
        return on_valid(self.value)

    def unwrap_or(self, default: object) -> A:
        return self.value

    def to_result(self) -> Result[A, Never]:
        return Success(self.value)


@final
@dataclass(frozen=True, slots=True)
class Invalid(Validation[E, Never]):
    """At least one error, in order.

    `Invalid(errors)` takes many, `Invalid.one(error)` takes one, and `Invalid.from_fields` takes errors
    by the name of their field. Raises ValueError without errors, and TypeError for text, bytes or a
    mapping in place of a list.

    Example:
        >>> from effectflow.effects import Invalid
        >>> Invalid(["too short", "no digit"])
        Invalid(errors=('too short', 'no digit'))
        >>> Invalid.one("too short")
        Invalid(errors=('too short',))
    """

    errors: tuple[E, ...]

    def __init__(self, errors: Iterable[E]) -> None:
        _check_are_listed(errors)
        object.__setattr__(self, "errors", tuple(errors))
        if not self.errors:
            raise ValueError("Invalid needs at least one error")

    @staticmethod
    def one(error: E2) -> Invalid[E2]:
        """Return `Invalid` with a single error."""
        return Invalid((error,))

    @staticmethod
    def from_fields(errors: Mapping[str, Iterable[E2]]) -> Invalid[tuple[str, E2]]:
        """Return the errors of all fields, each as a pair of the field and the error.

        Pairs combine with other checks by `Validation.all`, and `to_fields` returns the mapping again.

        Example:
            >>> from effectflow.effects import Invalid
            >>> Invalid.from_fields({"name": ["too short", "no digit"], "age": ["missing"]})
            Invalid(errors=(('name', 'too short'), ('name', 'no digit'), ('age', 'missing')))
        """
        for each in errors.values():
            _check_are_listed(each)
        return Invalid([(field, error) for field, each in errors.items() for error in each])

    def to_fields(self: Invalid[tuple[str, E2]]) -> dict[str, list[E2]]:
        """Return pairs of a field and an error as a mapping by field.

        Example:
            >>> from effectflow.effects import Invalid
            >>> Invalid([("name", "too short"), ("age", "missing"), ("name", "no digit")]).to_fields()
            {'name': ['too short', 'no digit'], 'age': ['missing']}
        """
        fields: dict[str, list[E2]] = {}
        for field, error in self.errors:
            fields.setdefault(field, []).append(error)
        return fields

    # `Any` and not `Never`: on a `Valid[A] | Invalid[E]`, type checkers infer a lambda for each class.
    def map(self, f: Callable[[Any], object]) -> Invalid[E]:
        return self

    def map_err(self, f: Callable[[E], E2]) -> Invalid[E2]:
        return Invalid([f(error) for error in self.errors])

    def and_then(self, f: Callable[[Any], object]) -> Invalid[E]:
        return self

    def fold(
        self, on_valid: Callable[[Never], object], on_invalid: Callable[[tuple[E, ...]], C]
    ) -> C:
        return on_invalid(self.errors)

    def unwrap_or(self, default: B) -> B:
        return default

    def to_result(self) -> Result[Never, tuple[E, ...]]:
        return Failure(self.errors)


def _check_are_listed(errors: object) -> None:
    """Raise TypeError for a single error or a mapping in place of a list."""
    if isinstance(errors, str | bytes | Mapping) or not isinstance(errors, Iterable):
        way_out = (
            "Invalid.from_fields({...})" if isinstance(errors, Mapping) else "Invalid.one(error)"
        )
        raise TypeError(f"Invalid needs a list of errors, not {errors!r}: use {way_out}")
