"""Errors to and from their records, so that a failure that was handled is the same after a resume.

An error is rebuilt only from a class that was declared, or from a built-in exception. No name in
stored data is ever imported.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import KnownTypes, MalformedValue, Tree, from_tree, to_tree

__all__ = ["error_classes", "is_exact", "read_error", "write_error"]

_BUILTIN: Mapping[str, type[Exception]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}


def error_classes(annotation: object) -> dict[str, type[Exception]]:
    """The exception classes in an annotation such as `PaymentError | Timeout`, by name."""
    if isinstance(annotation, type) and issubclass(annotation, Exception):
        return {_name(annotation): annotation}
    found: dict[str, type[Exception]] = {}
    for part in cast(Iterable[object], get_args(annotation)):
        found |= error_classes(part)
    return found


def write_error(error: object, types: KnownTypes, *, is_defect: bool) -> ErrorRecord:
    """The record of an error. One that has no exact form keeps its name and message alone."""
    text = (
        "".join(traceback.format_exception(error)) if isinstance(error, Exception) else repr(error)
    )
    return ErrorRecord(
        type=_name(type(error)),
        message=_without_surrogates(str(error)),
        value=_write_value(error, types),
        traceback=_without_surrogates(text) if is_defect else None,
    )


def read_error(
    record: ErrorRecord, step: str, types: KnownTypes, classes: Mapping[str, type[Exception]]
) -> Any:
    """The error that a record was made of.

    Fails (raises) with NotSerializable if it has no exact form or its class was not declared.
    """
    value = record.value
    try:
        if isinstance(value, dict) and "value" in value:
            return from_tree(value["value"], types=types)
        if isinstance(value, dict):
            found = _class_named(record.type, classes)
            args = cast(list[Any], from_tree(value["args"], types=types))
            state = cast(dict[str, Any], from_tree(value["state"], types=types))
            return _build(found, args, state)
    except (MalformedValue, LookupError, TypeError, ValueError, AttributeError):
        pass
    raise NotSerializable(
        step,
        f"it failed with {record.type}: {record.message}; the workflow handled that and went on, so a "
        "resume needs the error again, and cannot rebuild it. Declare its class: in the step's return "
        "annotation, `Effect[Env, TheError, Output]`, or by error=",
    )


def is_exact(error: object, record: ErrorRecord, again: object) -> bool:
    """Whether the error that a record gave is the one that it was made of."""
    if not isinstance(error, Exception):
        return type(again) is type(error) and again == error
    same_text = _without_surrogates(str(again)) == record.message
    return type(again) is type(error) and same_text


def _name(kind: type) -> str:
    return (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def _without_surrogates(text: str) -> str:
    """Text that every encoding can hold: what is no character is shown as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write_value(error: object, types: KnownTypes) -> Tree:
    try:
        if not isinstance(error, Exception):
            return {"value": to_tree(error, types=types)}
        # What pickle would keep: for an OSError the args in it have the file names too.
        _, args, *rest = cast("tuple[Any, ...]", error.__reduce__())
        kept = cast("dict[str, Any]", (rest[0] if rest else None) or {})
        state = {name: part for name, part in kept.items() if name != "__notes__"}
        return {
            "args": to_tree(list(args), types=types),
            "state": to_tree(state, types=types),
        }
    except (NotSerializable, TypeError, ValueError):
        return None


def _build(found: type[Exception], args: list[Any], state: dict[str, Any]) -> Exception:
    if found.__init__ in _BUILTIN_INITS:
        error = found(*args)
    else:
        # An __init__ of its own may take other arguments than those that it hands on.
        error = found.__new__(found)
        error.args = tuple(args)
    vars(error).update(state)
    return error


_BUILTIN_INITS = {kind.__init__ for kind in _BUILTIN.values()}


def _class_named(name: str, classes: Mapping[str, type[Exception]]) -> type[Exception]:
    """A class that was declared, one that derives from it, or a built-in one. Raises LookupError."""
    todo = list(classes.values())
    while todo:
        kind = todo.pop()
        if _name(kind) == name:
            return kind
        todo += kind.__subclasses__()
    return _BUILTIN[name]
