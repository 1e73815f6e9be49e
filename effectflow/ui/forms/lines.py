"""The values that are typed in one line: numbers, dates, and others that have a text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from effectflow.ui.forms.field import Line


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it is not a whole number") from None


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = float(text)
    except ValueError:
        raise ValueError("it is not a number") from None
    if found - found != 0:
        raise ValueError("it is not a finite number")
    return found


def _isoformat(value: Any) -> str:
    return value.isoformat()


_LINES: Mapping[type, Line] = {
    int: Line("numeric", "a whole number", _integer),
    float: Line("decimal", "a number", _number, repr),
    Decimal: Line("decimal", "a number"),
    # A datetime is a date, too.
    datetime: Line("text", "such as 2030-12-31T15:00:00+01:00", show=_isoformat),
    date: Line("date", "such as 2030-12-31", show=_isoformat),
    time: Line("text", "such as 15:00:00", show=_isoformat),
    timedelta: Line("decimal", "seconds", _number, lambda value: repr(value.total_seconds())),
    UUID: Line("text", "a UUID"),
    PurePath: Line("text", "a path"),
    bytes: Line("text", "base64", show=lambda value: b64encode(value).decode()),
}

_OF_PYDANTIC = Line("text", "")
_SECRET = Line("password", "it is not shown", str, lambda _: "")


def line_of(cls: type[Any], in_model: bool) -> Line | None:
    """Return how values of a class are typed in a line; None if they are not."""
    for kind, line in _LINES.items():
        if issubclass(cls, kind):
            # In a model, bytes are text.
            return None if in_model and kind is bytes else line
    if hasattr(cls, "__get_pydantic_core_schema__"):
        try:
            schema = TypeAdapter[Any](cls).json_schema()
        except Exception:
            # Not every type has one.
            return None
        if schema.get("type") == "string":
            return _SECRET if schema.get("writeOnly") else _OF_PYDANTIC
    return None
