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

__all__ = ["error_classes", "read_error", "write_error"]

_BUILTIN: Mapping[str, type[Exception]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}


def error_classes(annotation: object) -> dict[str, type[Exception]]:
    """The exception classes in an annotation such as `PaymentError | Timeout`, by name."""
    if isinstance(annotation, type) and issubclass(annotation, Exception):
        return {annotation.__name__: annotation}
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
        type=type(error).__name__,
        message=str(error),
        value=_write_value(error, types),
        traceback=text if is_defect else None,
    )


def _write_value(error: object, types: KnownTypes) -> Tree:
    try:
        if isinstance(error, Exception):
            state = {name: part for name, part in vars(error).items() if name != "__notes__"}
            return {
                "args": to_tree(list(error.args), types=types),
                "state": to_tree(state, types=types),
            }
        return {"value": to_tree(error, types=types)}
    except NotSerializable:
        return None


def read_error(
    record: ErrorRecord, step: str, types: KnownTypes, classes: Mapping[str, type[Exception]]
) -> Any:
    """The error that a record was made of.

    Fails (raises) with NotSerializable if it has no exact form or its class was not declared.
    """
    value = record.value
    found = classes.get(record.type) or _BUILTIN.get(record.type)
    try:
        if isinstance(value, dict) and "value" in value:
            return from_tree(value["value"], types=types)
        if isinstance(value, dict) and found is not None:
            error = found.__new__(found)
            error.args = tuple(cast(list[Any], from_tree(value["args"], types=types)))
            vars(error).update(cast(dict[str, Any], from_tree(value["state"], types=types)))
            return error
    except (MalformedValue, TypeError, AttributeError):
        pass
    raise NotSerializable(
        step,
        f"it failed with {record.type}: {record.message}; the workflow handled that and went on, and "
        "now the error cannot be rebuilt. Declare its class: in the step's return annotation, "
        "`Effect[Env, TheError, Output]`, or by error=",
    )
