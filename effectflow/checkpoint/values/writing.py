"""Values as trees of plain data, from which `reading` makes the same values again, type for type.

Plain JSON data stays what it is. Everything else becomes an object of one key that names its kind, as
`{"$datetime": "2026-01-01T00:00:00+00:00"}`, so a value can be read back without knowing what to
expect. Classes are only rebuilt from those that were declared: see `KnownTypes`.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

import orjson
from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.exceptions import (
    error_named,
    is_same_error,
    name_of_error,
    put_together,
    take_apart,
)
from effectflow.checkpoint.values.known_types import KnownTypes
from effectflow.checkpoint.values.model import Tree
from effectflow.checkpoint.values.plain import plain_copy
from effectflow.checkpoint.values.records import is_record
from effectflow.checkpoint.values.walk import (
    CONTAINERS,
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_ITEMS,
    Fault,
    Walk,
    check_hashes,
    segment_of,
)
from effectflow.checkpoint.values.zones import OF_PYDANTIC, name_of_zone

__all__ = ["to_tree"]


def to_tree(value: object, *, path: str = "$", types: KnownTypes) -> Tree:
    """The tree of a value.

    Raises NotSerializable, with the path of the part, for what could not be read back exactly.
    """
    if value.__class__ in CONTAINERS:
        copy = plain_copy(value, depth=MAX_DEPTH, items=MAX_ITEMS)
        if copy is not None:
            return copy
    try:
        return _write(value, Walk(types), MAX_DEPTH)
    except Fault as found:
        raise NotSerializable(path + found.path, found.reason) from None


def _write(value: Any, walk: Walk, depth: int) -> Any:
    kind = value.__class__
    if kind is str:
        return _write_text(value)
    if kind is bool or value is None:
        return value
    if kind is int and -(2**63) <= value < 2**64:
        return value
    if kind is float and math.isfinite(value):
        return value
    if depth == 0:
        raise Fault(f"it is nested more than {MAX_DEPTH} levels deep, or holds itself")
    if kind is int:
        return {"$int": _write_int(value)}
    if kind is float:
        return {"$float": repr(value)}
    if kind is list:
        return _write_items(value, walk, depth)
    if kind is dict:
        return _write_dict(value, walk, depth)
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value, walk, depth)
    return _write_object(value, walk, depth)


def _write_int(value: int) -> str:
    if value.bit_length() > MAX_INT_BITS:
        raise Fault(f"the integer has {value.bit_length():,} bits, more than {MAX_INT_BITS:,}")
    # Python refuses to write very long numbers in decimal digits, since that takes quadratic time.
    return str(value) if value.bit_length() <= _LONG_INT_BITS else hex(value)


_LONG_INT_BITS = 4096


def _write_text(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Fault(
            f"the text has a lone surrogate at {error.start}, which no encoding can hold: os.fsencode() "
            "gives the bytes of the name of a file, and text.encode(errors='backslashreplace') others"
        ) from None
    return value


def _write_items(values: Any, walk: Walk, depth: int) -> list[Any]:
    walk.count(values)
    out: list[Any] = []
    try:
        out.extend(_write(value, walk, depth - 1) for value in values)
    except Fault as found:
        raise found.under(f"[{len(out)}]") from None
    return out


def _write_dict(value: dict[Any, Any], walk: Walk, depth: int) -> Any:
    walk.count(value)
    if any(key.__class__ is not str or key[:1] == "$" for key in value):
        return {"$dict": _write_pairs(value, walk, depth)}
    out: dict[str, Any] = {}
    key = ""
    try:
        for key, part in value.items():
            out[_write_text(key)] = _write(part, walk, depth - 1)
    except Fault as found:
        raise found.under(segment_of(key)) from None
    return out


def _write_pairs(value: dict[Any, Any], walk: Walk, depth: int) -> list[Any]:
    check_hashes(value)
    return [
        [_write(key, walk, depth - 1), _write_at(part, segment_of(key), walk, depth)]
        for key, part in value.items()
    ]


def _write_at(value: Any, segment: str, walk: Walk, depth: int) -> Any:
    try:
        return _write(value, walk, depth - 1)
    except Fault as found:
        raise found.under(segment) from None


def _write_set(tag: str) -> Callable[[Any, Walk, int], Any]:
    def write(value: Any, walk: Walk, depth: int) -> Any:
        check_hashes(value)
        # Sorted, so that equal sets are written equally.
        return {tag: sorted(_write_items(value, walk, depth), key=_sorting_key)}

    return write


def _sorting_key(tree: Any) -> bytes:
    return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)


def _write_moment(tag: str) -> Callable[[Any, Walk, int], Any]:
    """Writes a datetime or a time of day: as text, or as text, name of its zone, and fold."""

    def write(value: datetime | time, _walk: Walk, _depth: int) -> Any:
        zone, text = value.tzinfo, value.isoformat()
        if (zone is UTC or zone is None) and not value.fold:
            return {tag: text}
        name = name_of_zone(zone)
        if name is not None:
            text = text if name == OF_PYDANTIC else value.replace(tzinfo=None).isoformat()
            return {tag: [text, name, value.fold]}
        if zone is not None and repr(type(value).fromisoformat(text).tzinfo) != repr(zone):
            raise Fault(
                f"its time zone {zone!r} is neither a plain offset nor what ZoneInfo gives for a name"
            )
        return {tag: [text, None, value.fold] if value.fold else text}

    return write


def _write_path(tag: str) -> Callable[[Any, Walk, int], Any]:
    return lambda value, _walk, _depth: {tag: _write_text(str(value))}


_WRITERS: Mapping[type, Callable[[Any, Walk, int], Any]] = {
    tuple: lambda value, walk, depth: {"$tuple": _write_items(value, walk, depth)},
    set: _write_set("$set"),
    frozenset: _write_set("$frozenset"),
    bytes: lambda value, _walk, _depth: {"$bytes": b64encode(value).decode()},
    datetime: _write_moment("$datetime"),
    date: lambda value, _walk, _depth: {"$date": value.isoformat()},
    time: _write_moment("$time"),
    timedelta: lambda value, _walk, _depth: {
        "$timedelta": [value.days, value.seconds, value.microseconds]
    },
    Decimal: lambda value, _walk, _depth: {"$decimal": str(value)},
    Fraction: lambda value, _walk, _depth: {
        "$fraction": [_write_int(value.numerator), _write_int(value.denominator)]
    },
    UUID: lambda value, _walk, _depth: {"$uuid": str(value)},
    Success: lambda value, walk, depth: {
        "$success": _write_at(value.unwrap(), ".unwrap()", walk, depth)
    },
    Failure: lambda value, walk, depth: {
        "$failure": _write_at(value.failure(), ".failure()", walk, depth)
    },
    Some: lambda value, walk, depth: {"$some": _write_at(value.unwrap(), ".unwrap()", walk, depth)},
    type(Nothing): lambda _value, _walk, _depth: {"$nothing": None},
    PosixPath: _write_path("$path"),
    WindowsPath: _write_path("$path"),
    PurePosixPath: _write_path("$posix_path"),
    PureWindowsPath: _write_path("$windows_path"),
}


def _write_object(value: Any, walk: Walk, depth: int) -> Any:
    kind = value.__class__
    name = walk.types.name_of(kind)
    if name is None:
        if isinstance(value, Exception):
            return _write_error(value, walk, depth)
        if is_record(kind) or isinstance(value, Enum):
            raise Fault(
                f"{kind.__name__} is not declared: annotate the function that gives it, "
                f"or pass output={kind.__name__}"
            )
        raise Fault(f"a {kind.__qualname__} cannot be saved so that the same comes back")
    if isinstance(value, Flag):
        # A combination of members has no name of its own.
        return {"$flag": [name, _write(value.value, walk, depth - 1)]}
    if isinstance(value, Enum):
        return {"$enum": [name, value.name]}
    try:
        fields = walk.types.fields_of(value)
    except ValueError as error:
        raise Fault(str(error)) from None
    walk.count(fields)
    out = {part: _write_at(fields[part], f".{part}", walk, depth) for part in fields}
    return {"$object": [name, out]}


def _write_error(error: Exception, walk: Walk, depth: int) -> Any:
    kind = type(error)
    name = name_of_error(kind)
    try:
        args, state = take_apart(error)
        again = put_together(error_named(name, walk.types.errors), args, state)
    except LookupError:
        raise Fault(
            f"{kind.__name__} is not declared: annotate the function that fails with it, "
            f"or pass error={kind.__name__}"
        ) from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise Fault(f"a {kind.__name__} cannot be made again of its args: {problem}") from None
    if not is_same_error(again, error):
        raise Fault(f"a {kind.__name__} made again of its args would be {again!r}")
    written = [_write_at(args, ".args", walk, depth), _write_dict(state, walk, depth)]
    return {"$error": [name, *written]}
