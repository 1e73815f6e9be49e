"""Convert errors to and from their records, so that a handled failure is the same after a resume.

An error is rebuilt only from a declared class or a built-in exception. A stored name is never imported.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    are_same,
    from_tree,
    safe_repr,
    to_tree,
)
from effectflow.checkpoint.values.exceptions import (
    error_named,
    name_of_error,
    put_together,
    take_apart,
    text_of,
)
from effectflow.effects.errors import Copyable
from effectflow.effects.tracebacks import hide_frames
from effectflow.effects.trails import Suppressed, TypedFailure

_FRAMES = 100
"""The number of recorded frames of a traceback: the innermost ones."""


class RecordedDefect(Copyable, Exception):
    """Stands for a defect of an earlier life whose class is neither declared nor built in.

    It also stands for such an error of a finalizer that failed while something else ended its fiber.

    Attributes:
        record: the name of its class, its text, and where it was raised.
    """

    def __init__(self, record: ErrorRecord) -> None:
        self.record = record
        super().__init__(record)

    def __str__(self) -> str:
        return f"{self.record.type}: {self.record.message}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def write_end(ended: TypedFailure | BaseException, types: KnownTypes) -> ErrorRecord:
    """Return the record of a failure, with its trail, or of a defect."""
    if not isinstance(ended, TypedFailure):
        return write_error(ended, types, is_defect=True)
    record = write_error(ended.error, types, is_defect=False)
    if not ended.trail:
        return record
    trail = tuple(_without_surrogates(str(line)) for line in ended.trail)
    return replace(record, trail=trail, suppressed=write_suppressed(ended.trail, types))


def read_failure(record: ErrorRecord, step: str, types: KnownTypes) -> TypedFailure:
    """Return the failure that a record was made of. Raises NotSerializable as `read_error` does."""
    error = read_error(record, step, types)
    return TypedFailure(error, _read_trail(record, types)) if record.trail else TypedFailure(error)


def write_suppressed(trail: Iterable[str], types: KnownTypes) -> tuple[ErrorRecord, ...]:
    """Return the records of the failed finalizers in a trail."""
    return tuple(
        write_error(line.error, types, is_defect=line.is_defect)
        for line in trail
        if isinstance(line, Suppressed)
    )


def _read_trail(record: ErrorRecord, types: KnownTypes) -> tuple[str, ...]:
    """Return the trail of a failure. Its lines about failed finalizers have the errors."""
    lines = [line for line in record.trail if line.startswith(Suppressed.PREFIX)]
    if len(lines) != len(record.suppressed):
        # The text of a user's `context(...)` may begin in the same way.
        return record.trail
    errors = iter(record.suppressed)
    return tuple(
        Suppressed.read(line, _read_any(one := next(errors), types), is_defect=one.is_defect)
        if line.startswith(Suppressed.PREFIX)
        else line
        for line in record.trail
    )


def _read_any(record: ErrorRecord, types: KnownTypes) -> object:
    """Return the error that a record was made of, or a RecordedDefect if it cannot be rebuilt."""
    try:
        return read_error(record, "", types)
    except NotSerializable:
        return RecordedDefect(record)


def write_error(error: object, types: KnownTypes, *, is_defect: bool) -> ErrorRecord:
    """Return the record of an error. An error that cannot be rebuilt keeps only its name and message."""
    if isinstance(error, RecordedDefect):
        return error.record
    is_exception = isinstance(error, Exception)
    trace = None
    if is_defect:
        # A traceback takes a hundred times as long as the rest of the record.
        trace = _traceback_of(error) if is_exception else safe_repr(error)
    return ErrorRecord(
        type=name_of_error(type(error)),
        message=_without_surrogates(text_of(error)),
        value=_write_value(error, types) if is_exception or not is_defect else None,
        traceback=None if trace is None else _without_surrogates(trace),
    )


def _traceback_of(error: Exception) -> str:
    hide_frames(error)
    frames: list[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    # Not with `limit`, which visits all frames anyway.
    innermost = frames[-_FRAMES:][0] if frames else None
    return "".join(traceback.format_exception(type(error), error, innermost))


def read_error(record: ErrorRecord, step: str, types: KnownTypes) -> object:
    """Return the error that a record was made of, or a RecordedDefect for an undeclared defect.

    Raises NotSerializable if a failure has no exact form or its class was not declared.
    """
    value = record.value
    try:
        if isinstance(value, dict) and "value" in value:
            return from_tree(value["value"], types=types)
        if isinstance(value, dict):
            found = error_named(record.type, types.errors)
            args: list[Any] = from_tree(value["args"], types=types)
            state: dict[str, Any] = from_tree(value["state"], types=types)
            return put_together(found, args, state)
    except (MalformedValue, LookupError, TypeError, ValueError, AttributeError):
        pass
    if record.traceback is not None:
        return RecordedDefect(record)
    raise NotSerializable(
        step,
        f"it failed with {record.type}: {record.message}; the workflow handled the failure, so a resume "
        f"needs the error again and cannot rebuild it. {_advice(record.type, types)}",
    )


def _advice(name: str, types: KnownTypes) -> str:
    """Return what to do about an error that cannot be rebuilt."""
    with suppress(LookupError):
        if name not in map(name_of_error, types.classes.values()):
            error_named(name, types.errors)
        return (
            "Its class is known, but an instance cannot be rebuilt from its arguments and attributes. "
            "Let the step fail with an error that can, for example with .map_err(...): a data class, or "
            "an exception whose arguments and attributes are plain data or of declared classes"
        )
    return (
        "Declare its class: in the return annotation, `Effect[Env, TheError, Output]`; of an async "
        "function with errors=; or with error= of with_checkpointing"
    )


def is_exact(error: object, record: ErrorRecord, again: object, types: KnownTypes) -> bool:
    """Return whether a rebuilt error is the original one: of the same class, text and saved form.

    Most exceptions equal only themselves, and so do lists of them.
    """
    has_same_text = (
        not isinstance(error, Exception) or _without_surrogates(text_of(again)) == record.message
    )
    is_same_class = type(again) is type(error)
    return is_same_class and has_same_text and are_same(_write_value(again, types), record.value)


def _without_surrogates(text: str) -> str:
    """Return text that every encoding can represent: lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write_value(error: object, types: KnownTypes) -> Tree:
    try:
        if not isinstance(error, Exception):
            return {"value": to_tree(error, types=types)}
        args, state = take_apart(error)
        return {"args": to_tree(args, types=types), "state": to_tree(state, types=types)}
    except Exception:
        # It cannot be saved, or its own code raised. Then the record has only its text.
        return None
