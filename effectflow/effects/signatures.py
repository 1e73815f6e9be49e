"""What the signature of a function declares: its input, its output, its errors and its environment."""

from __future__ import annotations

import builtins
import inspect
import sys
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, UnionType
from typing import Any, Never, NoReturn, Union, get_args, get_origin
from weakref import ref

from effectflow.effects.arguments import BaseEffect, effectful_decorator


class UnresolvedName(type):
    """Stands in an annotation for a name that cannot be resolved; its own name is that name.

    It may exist only for type checkers, in a function, or further down in the module.
    """

    def __getattr__(cls, name: str) -> UnresolvedName:
        if name.startswith("_"):
            raise AttributeError(name)
        return UnresolvedName(f"{cls.__name__}.{name}", (), {})

    def __getitem__(cls, _: object) -> UnresolvedName:
        return cls

    def __call__(cls, *_: object, **__: object) -> UnresolvedName:
        return cls


class _Names(dict[str, Any]):
    """Supplies names in annotations that are not in the module: names of a class, and unresolved ones."""

    def __init__(self, modules: Iterable[Mapping[str, Any]], classes: Iterable[type]) -> None:
        self._modules = (*modules, vars(builtins))
        self._classes = tuple(map(vars, classes))

    def __missing__(self, name: str) -> Any:
        if any(name in module for module in self._modules):
            # Python looks there next.
            raise KeyError(name)
        found = (names[name] for names in self._classes if name in names)
        return next(found, None) or UnresolvedName(name, (), {})


def type_hints(annotated: Any, *, include_extras: bool = False) -> dict[str, Any]:
    """Return the annotations of a function or class, with an UnresolvedName for each unknown name.

    A whole annotation that cannot be evaluated is omitted.
    """
    try:
        return typing.get_type_hints(annotated, include_extras=include_extras)
    except (NameError, TypeError, AttributeError):
        pass
    if isinstance(annotated, type):
        mro = annotated.__mro__
        modules = [vars(sys.modules[base.__module__]) for base in mro]
        names = _Names(modules, mro)
    else:
        names = _Names([getattr(inspect.unwrap(annotated), "__globals__", {})], ())
    try:
        return typing.get_type_hints(annotated, localns=names, include_extras=include_extras)
    except (NameError, TypeError, AttributeError):
        return {}


def meaning_of(alias: object) -> Any:
    """Return what a NewType or an alias (`type X = ...`) stands for; None if that is unknown."""
    for mark in ("__supertype__", "__value__"):
        # A name in it may exist only for type checkers.
        with suppress(AttributeError, NameError):
            return getattr(alias, mark)
    return None


@dataclass(slots=True)
class _Body:
    """The function of a `@do` body, and the exceptions that its annotation declares, once known."""

    function: Callable[..., Any]
    declared: tuple[type[Exception], ...] | None = None

    def exceptions(self) -> tuple[type[Exception], ...]:
        """Return the declared exceptions. Raise TypeError if the annotation cannot be resolved."""
        if self.declared is None:
            self.declared = _declared_by(self.function)
        return self.declared


_bodies: dict[int, _Body] = {}
"""The bodies by the identity of their code. Equal code may stand in two modules."""


def remember_body(
    function: Callable[..., Any], declared: tuple[type[Exception], ...] | None = None
) -> None:
    """Remember the function of a `@do` body, and which exceptions it declares as failures.

    Without `declared`, its annotation says so.
    """
    _bodies.setdefault(id(function.__code__), _Body(function, declared))
    function.__dict__["_effectflow_body"] = _Remembered(function)


class _Remembered:
    """Remembers a body in another process as well, if its function is sent there by value.

    The names in its annotation may be unknown there, so what they declare is sent, too.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        # Weakly, because the function refers to this.
        self._function = ref(function)

    def __reduce__(self) -> tuple[Any, ...]:
        function = self._function()
        declared: tuple[type[Exception], ...] | None = None
        if function is not None:
            # If it cannot be resolved here, the body says so when it raises there.
            with suppress(TypeError):
                declared = _bodies[id(function.__code__)].exceptions()
        return _remember_again, (function, declared)


def _remember_again(
    function: Callable[..., Any] | None, declared: tuple[type[Exception], ...] | None
) -> object:
    if function is None:
        # It was a bound method, which exists only for a moment.
        return None
    _bodies.setdefault(id(function.__code__), _Body(function, declared))
    return _Remembered(function)


def declares(body: CodeType, raised: Exception) -> bool:
    """Return whether a `@do` body declares a raised exception as a failure.

    The annotation is resolved when the body raises for the first time. Raises TypeError if that fails.
    """
    known = _bodies.get(id(body))
    return known is not None and isinstance(raised, known.exceptions())


def _declared_by(function: Callable[..., Any]) -> tuple[type[Exception], ...]:
    try:
        annotation = typing.get_type_hints(function).get("return")
    except Exception as problem:
        raise TypeError(
            f"the annotations of {function.__qualname__!r} cannot be resolved ({problem}), so it is "
            "unknown whether an exception that it raised is a declared failure. Import the names that "
            "the annotations use outside of `if TYPE_CHECKING`"
        ) from problem
    _, error, _ = _types_in(annotation)
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
    annotation = type_hints(function).get("return")
    errors: tuple[type[Exception], ...] | None = getattr(function, "declared_errors", None)
    if errors is not None:
        # Made by `@effect`, or of an async function, so it is annotated with its plain value.
        return annotation, Union[errors] if errors else None  # noqa: UP007, any number of them
    _, error, output = _types_in(annotation)
    return output, error


def never_fails(function: Callable[..., Any]) -> bool:
    """Return whether a function that returns an effect declares that it has no failures, only defects."""
    inner = getattr(function, "__wrapped__", None)
    if effectful_decorator(inner) is not None:
        # Another decorator has copied the marks and the annotations of what it wraps.
        return False
    made_by = effectful_decorator(function)
    errors: tuple[type[Exception], ...] | None = getattr(function, "declared_errors", None)
    if errors is not None:
        return not errors
    if inner is not None and made_by != "do":
        return False
    error: Any = _types_in(type_hints(function).get("return"))[1]
    return error is Never or error is NoReturn


def environment_type(function: Callable[..., Any]) -> object:
    """Return the environment that a function's annotations declare; None for a missing one.

    That is the first parameter of an `@effect`, otherwise part of the return annotation.
    """
    body = inspect.unwrap(function)
    hints = type_hints(body)
    if getattr(function, "takes_environment", False):
        return hints.get(next(iter(inspect.signature(body).parameters)))
    return _types_in(hints.get("return"))[0]


def input_type(function: Callable[..., Any]) -> object:
    """Return the annotation of a function's first parameter, or None without one.

    For an `@effect`, that is the one after the environment.
    """
    names = parameters_of(function)
    return type_hints(function).get(names[0]) if names else None


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters. An `@effect` leaves out the environment."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # Some built-in functions have no signature.
        return []


def _types_in(annotation: Any) -> tuple[object, object, object]:
    """Return the environment, the error and the output of an annotated effect or `@do` body."""
    origin, args = get_origin(annotation), get_args(annotation)
    if not isinstance(origin, type):
        return None, None, None
    if issubclass(origin, BaseEffect) and len(args) == 3:
        return args
    if issubclass(origin, Generator) and args:
        yielded = get_args(args[0])
        environment, error = yielded[:2] if len(yielded) == 3 else (None, None)
        return environment, error, args[2]
    return None, None, None


def returned_value(function: object) -> str | None:
    """Return what a plain function is annotated to return if it is no effect; None if it may be one."""
    is_plain = isinstance(function, FunctionType) and not hasattr(function, "__wrapped__")
    if not is_plain or effectful_decorator(function) is not None:
        return None
    annotation: Any = type_hints(function).get("return")
    if isinstance(annotation, UnresolvedName) or _may_be_an_effect(annotation):
        return None
    return getattr(annotation, "__name__", None) or str(annotation)


def _may_be_an_effect(annotation: Any) -> bool:
    """Return whether an effect or a generator may be of this type. Only classes of values cannot."""
    kind: Any = get_origin(annotation) or annotation
    # `Any` is a class since Python 3.11.
    if kind is Any or not isinstance(kind, type):
        return True
    try:
        return issubclass(kind, (BaseEffect, Generator)) or issubclass(BaseEffect, kind)
    except TypeError:
        # Some classes, such as protocols, do not support `issubclass`.
        return True
