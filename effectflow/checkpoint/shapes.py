"""What plain data must have at which key, to be what it is read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = [
    "LIST",
    "MAP",
    "MAP_OR_NULL",
    "NOTHING",
    "NUMBER",
    "TEXT",
    "TEXT_OR_NULL",
    "VALUE",
    "WHOLE",
    "YES_OR_NO",
    "Shape",
    "check_shape",
    "check_time",
    "texts",
]

Shape: TypeAlias = Mapping[str, frozenset[type]]
"""The classes that a value may have at each key."""

NOTHING: Shape = {}

TEXT = frozenset({str})
TEXT_OR_NULL = frozenset({str, type(None)})
NUMBER = frozenset({float, int})
WHOLE = frozenset({int})
YES_OR_NO = frozenset({bool})
LIST = frozenset({list})
MAP = frozenset({dict})
MAP_OR_NULL = frozenset({dict, type(None)})
VALUE = frozenset({str, int, float, bool, list, dict, type(None)})

_EARLIEST, _LATEST = -6e10, 2.5e11
"""Seconds since the epoch, in the years 68 and 9892: calendars have these and all between."""


def check_shape(tree: Mapping[str, Any], required: Shape, optional: Shape = NOTHING) -> None:
    """Refuse a map that lacks a key, has another, or has a value of another class at one.

    Raises KeyError, ValueError or TypeError.
    """
    for key, classes in required.items():
        if tree[key].__class__ not in classes:
            raise TypeError(f"{key} is a {type(tree[key]).__name__}")
    if len(tree) == len(required):
        return
    for key in tree.keys() - required.keys():
        if key not in optional:
            raise ValueError(f"{key} is no part of it")
        if tree[key].__class__ not in optional[key]:
            raise TypeError(f"{key} is a {type(tree[key]).__name__}")


def check_time(seconds: float) -> None:
    """Refuse seconds since the epoch that are no time. Raises TypeError or ValueError."""
    if seconds.__class__ not in NUMBER:
        raise TypeError(f"{seconds!r} is no time")
    if not _EARLIEST <= seconds <= _LATEST:
        raise ValueError(f"{seconds!r} is no time that a calendar has")


def texts(items: Sequence[Any]) -> tuple[str, ...]:
    """A list that has nothing but text. Raises TypeError for any other."""
    for item in items:
        if item.__class__ is not str:
            raise TypeError(f"{item!r} is no name")
    return tuple(items)
