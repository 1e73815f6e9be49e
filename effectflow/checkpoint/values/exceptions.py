"""Exceptions as values: taken apart and rebuilt as pickle would do it, without their `__init__`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from os.path import basename, splitext
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from effectflow.effects.trails import MARK

_BUILTIN: Mapping[str, type[Exception]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}

_BUILTIN_KINDS = frozenset(_BUILTIN.values())
_BUILTIN_INITS = {kind.__init__ for kind in _BUILTIN.values()}


def name_of_error(kind: type) -> str:
    """Return the name of a class of errors, with its module unless that is `builtins`.

    A script and a command that imports it give its classes the same names.
    """
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{importable_name(kind.__module__) or kind.__module__}.{kind.__qualname__}"


def importable_name(module: str) -> str:
    """Return the name by which other programs import a module, or "" if they cannot."""
    # `multiprocessing` imports the script again under the second name in the processes that it spawns.
    if module not in ("__main__", "__mp_main__"):
        return module
    main: Any = sys.modules[module]
    if main.__spec__ is not None:
        return main.__spec__.name
    # A script; its folder is the current one, most often. Typed code has no file.
    stem, suffix = splitext(basename(getattr(main, "__file__", "")))
    return stem if suffix == ".py" else ""


def text_of(error: object) -> str:
    """Return the text of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as problem:
        return f"<its text is unknown: {type(problem).__name__} in {type(error).__name__}.__str__>"


def safe_repr(value: object) -> str:
    """Return the repr of a value, even if its `__repr__` raises."""
    try:
        return repr(value)
    except Exception as problem:
        return f"<{type(value).__name__}, whose __repr__ raised {type(problem).__name__}>"


def error_named(name: object, declared: Mapping[str, type[Exception]]) -> type[Exception]:
    """Return a class that is declared, derives from a declared one that is not built in, or is built in.

    Declaring `Exception` or another built-in class does not declare its subclasses, which may be any
    classes of any module. Raises LookupError for any other name.
    """
    todo = [kind for kind in declared.values() if kind not in _BUILTIN_KINDS]
    while todo:
        kind = todo.pop()
        if name_of_error(kind) == name:
            return kind
        todo += kind.__subclasses__()
    if not isinstance(name, str) or name not in _BUILTIN:
        raise LookupError(f"{name!r} is not declared")
    return _BUILTIN[name]


def take_apart(error: Exception) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments and attributes that rebuild the same exception."""
    kind = type(error)
    # For an OSError this includes the file names.
    reduced: Any = _built_in_base(kind).__reduce__(error)
    args: list[Any] = list(reduced[1])
    state = {name: part for name, part in vars(error).items() if name not in ("__notes__", MARK)}
    try:
        of_args = _members_of(_made_of(kind, args))
    except ValueError:
        of_args = {}
    return args, state | {
        name: part
        for name, part in _members_of(error).items()
        if name not in of_args or not _is_same_part(part, of_args[name])
    }


def put_together(kind: type[Exception], args: list[Any], state: Mapping[str, Any]) -> Exception:
    """Return an exception with these arguments and attributes.

    Raises TypeError, ValueError or AttributeError if the class cannot have them.
    """
    error, members = _made_of(kind, args), _members(kind)
    for name, part in state.items():
        if name.__class__ is not str or name == "__notes__":
            raise ValueError(f"an exception has no attribute {name!r}")
        if name not in members:
            vars(error)[name] = part
        elif members[name].__objclass__ in _CHECKED_WHEN_MADE:
            raise ValueError(f"its {name} contradicts its arguments")
        else:
            # Not setattr: a frozen class rejects it, and a property would be called.
            members[name].__set__(error, part)
    return error


def is_same_error(one: Exception, other: Exception) -> bool:
    """Return whether two exceptions have the same class and text, and consist of the same parts."""
    if type(one) is not type(other) or text_of(one) != text_of(other):
        return False
    (args, state), (other_args, other_state) = take_apart(one), take_apart(other)
    return (
        len(args) == len(other_args)
        and all(map(_is_same_part, args, other_args))
        and state.keys() == other_state.keys()
        and all(_is_same_part(part, other_state[name]) for name, part in state.items())
    )


def _is_same_part(one: Any, other: Any) -> bool:
    """Return whether two parts are one object, or a number or tuple that a built-in class made of one."""
    return one is other or (
        one.__class__ is other.__class__ and one.__class__ in (int, tuple) and one == other
    )


def _made_of(kind: type[Exception], args: list[Any]) -> Exception:
    """Return an exception with these arguments and nothing else. Raises ValueError."""
    try:
        if kind.__init__ in _BUILTIN_INITS:
            return kind(*args)
        # Its own __init__ may take other arguments than those that it passes on.
        error = kind.__new__(kind)
        _built_in_base(kind).__init__(error, *args)
    except Exception as problem:
        raise ValueError(repr(problem)) from problem
    return error


def _built_in_base(kind: type[Exception]) -> type[Exception]:
    return next(base for base in kind.__mro__ if base in _BUILTIN_KINDS)


_LEFT_OUT = vars(AttributeError)["obj"]
"""The object that lacked the attribute: a part of the place of the error. Pickle omits it, too."""

_CHECKED_WHEN_MADE = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
"""CPython reads memory at the position in their attributes, and checks these only as arguments."""


@cache
def _members(kind: type[Exception]) -> Mapping[str, MemberDescriptorType | GetSetDescriptorType]:
    """Return the members of an exception outside its `__dict__`: slots, and those of built-in classes."""
    members: dict[str, MemberDescriptorType | GetSetDescriptorType] = {}
    for base in reversed(kind.__mro__):
        for name, part in vars(base).items():
            if isinstance(part, MemberDescriptorType):
                is_member = base is not BaseException and part is not _LEFT_OUT
            else:
                is_member = isinstance(part, GetSetDescriptorType) and base in _BUILTIN_KINDS
            if is_member and name != "__weakref__":
                members[name] = part
    return members


def _members_of(error: Exception) -> dict[str, Any]:
    """Return the members that are set."""
    found: dict[str, Any] = {}
    for name, member in _members(type(error)).items():
        with suppress(AttributeError):
            found[name] = member.__get__(error)
    return found
