"""The classes whose values can be saved as they are, and the tags of these values in stored data.

Imported late: it needs the dates, numbers, paths and time zones of the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

from returns.maybe import Nothing, Some
from returns.result import Failure, Success

TAGS: Mapping[type[Any], str] = {
    int: "$int",
    float: "$float",
    bytes: "$bytes",
    datetime: "$datetime",
    date: "$date",
    time: "$time",
    timedelta: "$timedelta",
    Decimal: "$decimal",
    Fraction: "$fraction",
    UUID: "$uuid",
    PosixPath: "$path",
    WindowsPath: "$path",
    PurePosixPath: "$posix_path",
    PureWindowsPath: "$windows_path",
    type(Nothing): "$nothing",
    Some: "$some",
    Success: "$success",
    Failure: "$failure",
    tuple: "$tuple",
    set: "$set",
    frozenset: "$frozenset",
    dict: "$dict",
}
"""The tag for the values of exactly this class. Plain data needs none."""

SAVED_CLASSES = frozenset({*TAGS, str, bool, type(None), list})
"""The classes, besides those that users define, whose values can be saved."""
