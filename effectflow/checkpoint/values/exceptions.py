"""Exceptions taken apart and put together again, as pickle would do it, but only of known classes.

A class is known if it was declared, derives from one that was, or is built in. No name in stored data
is ever imported.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["error_named", "name_of_error", "put_together", "take_apart", "text_of"]

_BUILTIN: Mapping[str, type[Exception]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}

_BUILTIN_INITS = {kind.__init__ for kind in _BUILTIN.values()}


def name_of_error(kind: type) -> str:
    """The name of a class of errors, with its module unless that is built in."""
    return (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def text_of(error: object) -> str:
    """An error as text, even one that cannot be made text."""
    try:
        return str(error)
    except Exception as problem:
        return f"<its text is unknown: {type(problem).__name__} in {type(error).__name__}.__str__>"


def error_named(name: object, declared: Mapping[str, type[Exception]]) -> type[Exception]:
    """A class that was declared, one that derives from it, or a built-in one. Raises LookupError."""
    todo = list(declared.values())
    while todo:
        kind = todo.pop()
        if name_of_error(kind) == name:
            return kind
        todo += kind.__subclasses__()
    if not isinstance(name, str) or name not in _BUILTIN:
        raise LookupError(f"{name!r} is not declared")
    return _BUILTIN[name]


def take_apart(error: Exception) -> tuple[list[Any], dict[str, Any]]:
    """The arguments and attributes that make the same exception again. Raises TypeError or ValueError."""
    # What pickle would keep: for an OSError the args in it have the file names too.
    _, args, *rest = cast("tuple[Any, ...]", error.__reduce__())
    kept = cast("dict[str, Any]", (rest[0] if rest else None) or {})
    return list(args), {name: part for name, part in kept.items() if name != "__notes__"}


def put_together(kind: type[Exception], args: list[Any], state: Mapping[str, Any]) -> Exception:
    """An exception of its arguments and attributes. Raises TypeError, ValueError or AttributeError."""
    if kind.__init__ in _BUILTIN_INITS:
        error = kind(*args)
    else:
        # An __init__ of its own may take other arguments than those that it hands on.
        error = kind.__new__(kind)
        error.args = tuple(args)
    vars(error).update(state)
    return error
