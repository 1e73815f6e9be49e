"""The output and the errors that the annotations of a function declare."""

from __future__ import annotations

import typing
from collections.abc import Callable, Generator, Iterator
from functools import cache
from types import CodeType, UnionType
from typing import Any, Union, get_args, get_origin

from effectflow.effects.effect import Effect

_bodies: dict[CodeType, Callable[..., Any]] = {}


def remember_body(function: Callable[..., Any]) -> None:
    """Remember the function of a `@do` body, whose annotation declares which exceptions are failures."""
    _bodies.setdefault(function.__code__, function)


def declares(body: CodeType, raised: Exception) -> bool:
    """Return whether the annotation of a `@do` body declares a raised exception as a failure.

    The annotation is resolved when the body raises for the first time. Raises TypeError if that fails.
    """
    return isinstance(raised, _declared_by(body))


@cache
def _declared_by(body: CodeType) -> tuple[type[Exception], ...]:
    function = _bodies.get(body)
    if function is None:
        return ()
    try:
        annotation = typing.get_type_hints(function).get("return")
    except Exception as problem:
        raise TypeError(
            f"the annotations of {function.__qualname__!r} cannot be resolved ({problem}), so it is "
            "unknown whether an exception that it raised is a declared failure. Import the names that "
            "the annotations use outside of `if TYPE_CHECKING`"
        ) from problem
    _, error = _types_in(annotation)
    return tuple(dict.fromkeys(_exceptions_in(error)))


def _exceptions_in(annotation: Any) -> Iterator[type[Exception]]:
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        for part in get_args(annotation):
            yield from _exceptions_in(part)
        return
    # `type Errors = ...` stands for what it names.
    meant = getattr(annotation, "__value__", None)
    if meant is not None:
        yield from _exceptions_in(meant)
        return
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, Exception):
        yield kind


def effect_types(function: Callable[..., Any]) -> tuple[object, object]:
    """Return the output and error types in a function's return annotation; None for a missing one."""
    try:
        annotation = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        # A name that exists only for the type checkers: its classes then count as undeclared.
        return None, None
    errors: tuple[type[Exception], ...] | None = getattr(function, "declared_errors", None)
    if errors is not None:
        # Made by `@effect`, so it is annotated with its plain value.
        return annotation, Union[errors] if errors else None  # noqa: UP007, any number of them
    return _types_in(annotation)


def _types_in(annotation: Any) -> tuple[object, object]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Effect and len(args) == 3:
        return args[2], args[1]
    if isinstance(origin, type) and issubclass(origin, Generator) and args:
        yielded = get_args(args[0])
        return args[2], yielded[1] if len(yielded) == 3 else None
    return None, None
