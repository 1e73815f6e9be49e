"""Reject wrong arguments when an effect is created, with messages that say what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeVar

A = TypeVar("A")

CO_COROUTINE: Final = inspect.CO_COROUTINE
"""The flag in the code of an async function."""

_ASYNC: Final = CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

RETURN_AN_EFFECT = (
    "put @do above it, so that its calls are effects; or @effect, if it takes the environment first"
)
AND_THEN = "await it in an effect: .and_then(lambda value: from_async(lambda env: ...))"
TEST_THE_VALUE = (
    "a coroutine would count as true; await the condition in an effect, and test its value"
)

START_A_WORKFLOW = "use its .start(...), or .call(...) within another workflow"


class BaseEffect:
    """The base of `Effect`, by which the checks of its methods recognize an effect."""

    __slots__ = ()


def is_async(function: Any) -> bool:
    """Return whether a call of this returns a coroutine: async functions, methods, partials, objects."""
    while True:
        # Not `__class__`: a mock with a spec returns the class of the function that it replaces.
        kind: type = type(function)  # pyright: ignore[reportUnknownVariableType]  # of any
        if kind is FunctionType:
            return bool(function.__code__.co_flags & CO_COROUTINE)
        if kind is MethodType:
            function = function.__func__
        elif kind is partial:
            function = function.func
        elif kind is BuiltinFunctionType or isinstance(function, type):
            return False
        elif _has_flags(function) and inspect.iscoroutinefunction(function):
            return True
        else:
            function = getattr(kind, "__call__", None)  # noqa: B004, as it is called
            if function.__class__ is not FunctionType:
                return False


def _has_flags(function: Any) -> bool:
    """Return whether the flags in the code of a callable are known, unlike those of a mock."""
    code = getattr(function, "__code__", None)
    return code is None or isinstance(code.co_flags, int)


def check_function(function: Any, operator: str, way_out: str = RETURN_AN_EFFECT) -> None:
    """Raise TypeError unless this is a function, or another callable, that is not async."""
    kind: type = type(function)  # pyright: ignore[reportUnknownVariableType]  # of any
    if kind is FunctionType and not function.__code__.co_flags & _ASYNC:
        return
    if kind is type or kind is BuiltinFunctionType:
        return
    if isinstance(function, BaseEffect):
        raise TypeError(f"{operator} takes a function, not an effect: use `lambda _: {function!r}`")
    if not is_callable(function):
        raise TypeError(f"{operator} takes a function, not {function!r}")
    if is_async(function):
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeError(f"{operator} takes a plain function, and {name} is async: {way_out}")
    if _has_flags(function) and inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{operator} takes no async generator function such as {function.__qualname__}"
        )


def mark_as_effectful(function: Any, decorator: str) -> None:
    """Mark a function that returns an effect with the decorator that made it."""
    function._effectflow_decorator = decorator


def effectful_decorator(function: object) -> str | None:
    """Return the decorator, such as "step", that made a function return effects; None for others."""
    return getattr(function, "_effectflow_decorator", None)


def is_callable(given: object) -> bool:
    """Return whether this can be called. A workflow cannot: its `__call__` only says what to write."""
    return callable(given) and effectful_decorator(given) != "workflow"


def was_rejected(
    error: TypeError, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether a call raised this because the arguments do not fit, before any code of it ran."""
    traceback = error.__traceback__
    ran = traceback is not None and traceback.tb_next is not None
    return not ran and misfit_of(function, args, kwargs) is not None


def misfit_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return why the parameters of a function reject these arguments; None if they do not."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as problem:
        return str(problem)
    except ValueError:
        # Some built-in functions have no signature.
        pass
    return None


def call_of(function: Any, *, skip: int = 0) -> str:
    """Return a call of a function as its author would write it, without the first `skip` parameters."""
    shown: list[str] = []
    for one in [*inspect.signature(function).parameters.values()][skip:]:
        if one.kind is one.VAR_POSITIONAL:
            shown.append(f"*{one.name}")
        elif one.kind is one.VAR_KEYWORD:
            shown.append(f"**{one.name}")
        elif one.default is one.empty:
            is_keyword = one.kind is one.KEYWORD_ONLY
            shown.append(f"{one.name}={one.name}" if is_keyword else one.name)
    return f"{getattr(function, '__name__', None) or repr(function)}({', '.join(shown)})"


def check_effects(operator: str, *given: object) -> None:
    """Raise TypeError unless all of these are effects."""
    for one in given:
        if not isinstance(one, BaseEffect):
            raise TypeError(f"{operator}: {not_an_effect(one)}")


def check_items(operator: str, items: object) -> None:
    """Raise TypeError for one effect in place of items. It can be iterated, because of `yield from`."""
    if isinstance(items, BaseEffect):
        raise TypeError(
            f"{operator} takes a list or another iterable, not one effect: write {operator}([effect]), "
            "or effect.and_then(...) if the effect yields the items"
        )


def not_an_effect(found: object) -> str:
    """Return the message for something that should be an effect."""
    if effectful_decorator(found) == "workflow":
        hint = START_A_WORKFLOW
    elif effectful_decorator(found) is not None:
        hint = "did you forget to call it?"
    elif inspect.isgenerator(found):
        hint = "decorate the generator function with @do"
    elif inspect.isawaitable(found):
        hint = (
            "put @do above its async function, so that a call is an effect; await anything else in "
            "from_async(lambda env: ...)"
        )
        close_coroutine(found)
    elif callable(found):
        hint = "did you forget to call it?"
    elif isinstance(found, Iterable) and not isinstance(found, str | bytes):
        hint = "for a list of effects, use par_try_all(effects), or unpack it: par(*effects)"
    else:
        hint = "wrap a plain value in pure(...)"
    return f"expected an effect and got {found!r}: {hint}"


def not_awaited(effect: BaseEffect, found: object) -> str:
    """Return the message for a coroutine that an effect yields."""
    close_coroutine(found)
    return (
        f"{effect!r} yields the coroutine {found!r}, which nothing awaits. A plain function returned it: "
        f"{AND_THEN}"
    )


def close_coroutine(found: object) -> None:
    """Close a coroutine that is rejected. Otherwise Python warns that it was never awaited."""
    if inspect.iscoroutine(found):
        found.close()


def unfinished_kind(result: object) -> str | None:
    """Return the kind of a result that must still be run, and would count as true; None for others."""
    if isinstance(result, BaseEffect):
        return "an effect"
    if inspect.isawaitable(result):
        close_coroutine(result)
        return "an awaitable"
    return None


def holds(predicate: Callable[[A], object], value: A, operator: str) -> bool:
    """Return whether a predicate of an operator holds. Raise TypeError if it would have to be run."""
    verdict = predicate(value)
    if verdict is True or verdict is False:
        return verdict
    kind = unfinished_kind(verdict)
    if kind is not None:
        raise TypeError(f"the predicate of {operator} returned {kind}: {TEST_THE_VALUE}")
    return bool(verdict)


def check_type(given: object, expected: type, message: str) -> None:
    """Raise TypeError unless `given` is an instance of `expected`. Its repr completes the message."""
    if not isinstance(given, expected):
        raise TypeError(f"{message}, not {given!r}")


def check_text(what: str, given: object) -> None:
    """Raise TypeError unless this is text, and ValueError for text that cannot be stored."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is text, not {given!r}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} has a lone surrogate, which no encoding can hold: {given!r}"
        ) from None


def check_count(name: str, given: object, *, least: int) -> None:
    """Raise ValueError unless `given` is an int >= `least`. Bools are rejected."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ValueError(f"{name} must be an int >= {least}, not {given!r}")


def add_hint(error: Exception, hint: str) -> None:
    """Append what to do to the message of an exception that Python has just raised."""
    # It may pass through several interpreters.
    if hint not in str(error):
        error.args = (f"{error}. {hint}",)
