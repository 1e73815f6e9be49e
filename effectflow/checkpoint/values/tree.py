"""Values to and from trees of plain data, type for type.

Plain JSON data stays what it is. Everything else becomes an object of one key that names its kind, as
`{"$datetime": "2026-01-01T00:00:00+00:00"}`, so a value can be read back without knowing what to
expect. Classes are only rebuilt from those that were declared: see `KnownTypes`.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sized
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeGuard, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from returns.maybe import Maybe, Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.exceptions import (
    error_named,
    name_of_error,
    put_together,
    take_apart,
    text_of,
)
from effectflow.checkpoint.values.known_types import KnownTypes, MalformedValue
from effectflow.checkpoint.values.model import Tree
from effectflow.checkpoint.values.plain import is_plain, plain_copy
from effectflow.checkpoint.values.records import is_record

__all__ = ["MAX_DEPTH", "MAX_INT_BITS", "MAX_ITEMS", "from_tree", "to_tree"]

MAX_DEPTH = 64
"""How deep a value may be nested."""

MAX_ITEMS = 1_000_000
"""How many items the lists, tuples, sets, dicts and objects of one value may have in all."""

MAX_INT_BITS = 131_072
"""How large an integer may be: a fraction of two takes quadratic time to be made."""

MAX_SAME_HASH = 100
"""How many items of a set, or keys of a dict, may have one hash: each is compared with those before."""


def to_tree(value: object, *, path: str = "$", types: KnownTypes) -> Tree:
    """The tree of a value.

    Raises NotSerializable, with the path of the part, for what could not be read back exactly.
    """
    if value.__class__ in _CONTAINERS:
        copy = plain_copy(value, depth=MAX_DEPTH, items=MAX_ITEMS)
        if copy is not None:
            return copy
    try:
        return _write(value, _Walk(types), MAX_DEPTH)
    except _At as found:
        raise NotSerializable(path + found.path, found.reason) from None


def from_tree(tree: Tree, *, path: str = "$", types: KnownTypes) -> Any:
    """The value of a tree: the inverse of `to_tree`. Plain data may be the tree itself.

    Raises MalformedValue, with the path of the part, for a tree that `to_tree` did not make or that
    has a class that is not declared.
    """
    if tree.__class__ in _CONTAINERS and is_plain(tree, depth=MAX_DEPTH, items=MAX_ITEMS):
        return tree
    try:
        return _read(tree, _Walk(types), MAX_DEPTH)
    except _At as found:
        raise MalformedValue(path + found.path, found.reason) from None


_CONTAINERS = (dict, list)


class _At(Exception):
    """A fault on its way up; each level puts its own segment in front of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path

    def under(self, segment: str) -> _At:
        return _At(self.reason, segment + self.path)


def _key(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


class _Walk:
    """One value on its way to its tree or back: the classes that it may have, and the items so far."""

    def __init__(self, types: KnownTypes) -> None:
        self.types = types
        self.items = 0

    def count(self, parts: Sized) -> None:
        """Take these along. Raises _At if there are too many."""
        self.items += len(parts)
        if self.items > MAX_ITEMS:
            raise _At(f"with its {len(parts):,} items there are more than {MAX_ITEMS:,} in all")


def _write(value: Any, walk: _Walk, depth: int) -> Any:
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
        raise _At(f"it is nested more than {MAX_DEPTH} levels deep, or holds itself")
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
        raise _At(f"the integer has {value.bit_length():,} bits, more than {MAX_INT_BITS:,}")
    # Python refuses to write very long numbers in decimal digits, since that takes quadratic time.
    return str(value) if value.bit_length() <= _LONG_INT_BITS else hex(value)


_LONG_INT_BITS = 4096


def _write_text(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _At(
            f"the text has a lone surrogate at {error.start}, which no encoding can hold: os.fsencode() "
            "gives the bytes of the name of a file, and text.encode(errors='backslashreplace') others"
        ) from None
    return value


def _write_items(values: Any, walk: _Walk, depth: int) -> list[Any]:
    walk.count(values)
    out: list[Any] = []
    try:
        out.extend(_write(value, walk, depth - 1) for value in values)
    except _At as found:
        raise found.under(f"[{len(out)}]") from None
    return out


def _write_dict(value: dict[Any, Any], walk: _Walk, depth: int) -> Any:
    walk.count(value)
    if any(key.__class__ is not str or key[:1] == "$" for key in value):
        return {"$dict": _write_pairs(value, walk, depth)}
    out: dict[str, Any] = {}
    key = ""
    try:
        for key, part in value.items():
            out[_write_text(key)] = _write(part, walk, depth - 1)
    except _At as found:
        raise found.under(_key(key)) from None
    return out


def _write_pairs(value: dict[Any, Any], walk: _Walk, depth: int) -> list[Any]:
    _check_hashes(value)
    return [
        [_write(key, walk, depth - 1), _write_at(part, _key(key), walk, depth)]
        for key, part in value.items()
    ]


def _write_at(value: Any, segment: str, walk: _Walk, depth: int) -> Any:
    try:
        return _write(value, walk, depth - 1)
    except _At as found:
        raise found.under(segment) from None


def _write_set(tag: str) -> Callable[[Any, _Walk, int], Any]:
    def write(value: Any, walk: _Walk, depth: int) -> Any:
        _check_hashes(value)
        # Sorted, so that equal sets are written equally.
        return {tag: sorted(_write_items(value, walk, depth), key=_sorting_key)}

    return write


def _check_hashes(parts: Collection[Any]) -> None:
    hashes = Counter(map(hash, parts))
    if len(hashes) < len(parts) and max(hashes.values()) > MAX_SAME_HASH:
        raise _At(f"more than {MAX_SAME_HASH} of its items have the same hash")


def _sorting_key(tree: Any) -> bytes:
    return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)


def _write_moment(tag: str) -> Callable[[Any, _Walk, int], Any]:
    """Writes a datetime or a time of day: as text, or as text, name of its zone, and fold."""

    def write(value: datetime | time, _walk: _Walk, _depth: int) -> Any:
        zone, text = value.tzinfo, value.isoformat()
        if (zone is UTC or zone is None) and not value.fold:
            return {tag: text}
        if _is_named(zone):
            return {tag: [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]}
        if zone is not None and repr(type(value).fromisoformat(text).tzinfo) != repr(zone):
            raise _At(
                f"its time zone {zone!r} is neither a plain offset nor what ZoneInfo gives for a name"
            )
        return {tag: [text, None, value.fold] if value.fold else text}

    return write


def _is_named(zone: tzinfo | None) -> TypeGuard[ZoneInfo]:
    """Whether a zone is the one that its name stands for: one read from a file may have any name."""
    if not isinstance(zone, ZoneInfo) or not zone.key:
        return False
    try:
        return ZoneInfo(zone.key) is zone
    except (ZoneInfoNotFoundError, ValueError):
        return False


def _write_path(tag: str) -> Callable[[Any, _Walk, int], Any]:
    return lambda value, _walk, _depth: {tag: _write_text(str(value))}


_WRITERS: Mapping[type, Callable[[Any, _Walk, int], Any]] = {
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


def _write_object(value: Any, walk: _Walk, depth: int) -> Any:
    kind = value.__class__
    name = walk.types.name_of(kind)
    if name is None:
        if isinstance(value, Exception):
            return _write_error(value, walk, depth)
        if is_record(kind) or isinstance(value, Enum):
            raise _At(
                f"{kind.__name__} is not declared: annotate the function that gives it, "
                f"or pass output={kind.__name__}"
            )
        raise _At(f"a {kind.__qualname__} cannot be saved so that the same comes back")
    if isinstance(value, Flag):
        # A combination of members has no name of its own.
        return {"$flag": [name, _write(value.value, walk, depth - 1)]}
    if isinstance(value, Enum):
        return {"$enum": [name, value.name]}
    try:
        fields = walk.types.fields_of(value)
    except ValueError as error:
        raise _At(str(error)) from None
    walk.count(fields)
    out = {part: _write_at(fields[part], f".{part}", walk, depth) for part in fields}
    return {"$object": [name, out]}


def _write_error(error: Exception, walk: _Walk, depth: int) -> Any:
    kind = type(error)
    name = name_of_error(kind)
    try:
        args, state = take_apart(error)
        again = put_together(error_named(name, walk.types.errors), args, state)
    except LookupError:
        raise _At(
            f"{kind.__name__} is not declared: annotate the function that fails with it, "
            f"or pass error={kind.__name__}"
        ) from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise _At(f"a {kind.__name__} cannot be made again of its args: {problem}") from None
    if type(again) is not kind or text_of(again) != text_of(error):
        raise _At(f"a {kind.__name__} made again of its args would be {again!r}")
    written = [_write_at(args, ".args", walk, depth), _write_dict(state, walk, depth)]
    return {"$error": [name, *written]}


def _read(tree: Any, walk: _Walk, depth: int) -> Any:
    kind = tree.__class__
    if kind is not dict and kind is not list:
        if kind not in _PLAIN:
            raise _At(f"a {kind.__name__} is no part of a saved value")
        return tree
    if depth == 0:
        raise _At(f"it is nested more than {MAX_DEPTH} levels deep")
    if kind is list:
        return _read_items(tree, walk, depth)
    if len(tree) == 1:
        [(tag, content)] = tree.items()
        if tag.__class__ is str and tag[:1] == "$":
            return _read_tagged(tag, content, walk, depth)
    walk.count(tree)
    out: dict[str, Any] = {}
    key = ""
    for key in tree:
        if key.__class__ is not str:
            raise _At(f"{key!r} is no text, as keys are")
        if key[:1] == "$":
            raise _At("a kind of value stands beside other keys")
    try:
        for key, part in tree.items():
            out[key] = _read(part, walk, depth - 1)
    except _At as found:
        raise found.under(_key(key)) from None
    return out


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _read_items(trees: Any, walk: _Walk, depth: int) -> list[Any]:
    walk.count(trees)
    out: list[Any] = []
    try:
        out.extend(_read(tree, walk, depth - 1) for tree in trees)
    except _At as found:
        raise found.under(f"[{len(out)}]") from None
    return out


def _read_tagged(tag: str, content: Any, walk: _Walk, depth: int) -> Any:
    reader = _READERS.get(tag)
    if reader is None:
        raise _At(f"{tag!r} is no kind of value that this version knows")
    try:
        return reader(content, walk, depth)
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, LookupError) as error:
        raise _At(f"this is no {tag[1:]}: {error}") from None


def _expect(content: Any, kind: type) -> Any:
    if content.__class__ is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(content).__name__}")
    return content


def _expect_nothing(content: Any) -> Maybe[Any]:
    if content is not None:
        raise TypeError(f"expected null, found {content!r}")
    return Nothing


def _listed(content: Any, walk: _Walk, depth: int) -> list[Any]:
    return _read_items(_expect(content, list), walk, depth)


def _read_set(content: Any, walk: _Walk, depth: int) -> list[Any]:
    parts = _listed(content, walk, depth)
    _check_distinct(parts)
    return parts


def _check_distinct(parts: list[Any]) -> None:
    _check_hashes(parts)
    if len(set(parts)) < len(parts):
        raise ValueError("something is in it twice")


def _read_pairs(content: Any, walk: _Walk, depth: int) -> dict[Any, Any]:
    walk.count(_expect(content, list))
    pairs = [(key, value) for key, value in (_expect(pair, list) for pair in content)]
    keys = [_read(key, walk, depth - 1) for key, _ in pairs]
    _check_distinct(keys)
    return dict(zip(keys, (_read(value, walk, depth - 1) for _, value in pairs), strict=True))


def _read_moment(kind: type[datetime] | type[time]) -> Callable[[Any, _Walk, int], Any]:
    def read(content: Any, _walk: _Walk, _depth: int) -> datetime | time:
        if isinstance(content, str):
            return kind.fromisoformat(content)
        text, zone, fold = _expect(content, list)
        moment = kind.fromisoformat(text).replace(fold=_expect(fold, int))
        return moment if zone is None else moment.replace(tzinfo=ZoneInfo(zone))

    return read


def _read_float(content: Any, _walk: _Walk, _depth: int) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueError(f"{content!r}")
    return float(content)


def _read_int(content: Any) -> int:
    digits: str = _expect(content, str)
    if len(digits) > MAX_INT_BITS // 4 + len("-0x"):
        raise ValueError(f"it has {len(digits):,} digits")
    return int(digits, 16) if digits.removeprefix("-").startswith("0x") else int(digits)


def _read_fraction(content: Any, _walk: _Walk, _depth: int) -> Fraction:
    numerator, denominator = _expect(content, list)
    return Fraction(_read_int(numerator), _read_int(denominator))


def _read_timedelta(content: Any, _walk: _Walk, _depth: int) -> timedelta:
    days, seconds, microseconds = (_expect(part, int) for part in _expect(content, list))
    return timedelta(days, seconds, microseconds)


def _read_enum(content: Any, walk: _Walk, _depth: int) -> Enum:
    name, member = _expect(content, list)
    return cast(Enum, cast(Any, walk.types.class_named(name, is_enum=True))[member])


def _read_flag(content: Any, walk: _Walk, depth: int) -> Enum:
    name, number = _expect(content, list)
    kind: Any = walk.types.class_named(name, is_enum=True)
    if not issubclass(kind, Flag):
        raise TypeError(f"{name} is no flag")
    return kind(_expect(_read(number, walk, depth - 1), int))


def _read_object(content: Any, walk: _Walk, depth: int) -> Any:
    name, fields = _expect(content, list)
    values: dict[str, Any] = {}
    walk.count(_expect(fields, dict))
    for part, tree in fields.items():
        try:
            values[part] = _read(tree, walk, depth - 1)
        except _At as found:
            raise found.under(f".{part}") from None
    return walk.types.build(name, values)


def _read_error(content: Any, walk: _Walk, depth: int) -> Exception:
    name, args, state = _expect(content, list)
    kind = error_named(name, walk.types.errors)
    parts = _expect(_read(state, walk, depth), dict)
    return put_together(kind, _listed(args, walk, depth - 1), parts)


_READERS: Mapping[str, Callable[[Any, _Walk, int], Any]] = {
    "$int": lambda content, _walk, _depth: _read_int(content),
    "$float": _read_float,
    "$tuple": lambda content, walk, depth: tuple(_listed(content, walk, depth)),
    "$set": lambda content, walk, depth: set(_read_set(content, walk, depth)),
    "$frozenset": lambda content, walk, depth: frozenset(_read_set(content, walk, depth)),
    "$dict": _read_pairs,
    "$bytes": lambda content, _walk, _depth: b64decode(_expect(content, str), validate=True),
    "$datetime": _read_moment(datetime),
    "$date": lambda content, _walk, _depth: date.fromisoformat(content),
    "$time": _read_moment(time),
    "$timedelta": _read_timedelta,
    "$decimal": lambda content, _walk, _depth: Decimal(_expect(content, str)),
    "$fraction": _read_fraction,
    "$uuid": lambda content, _walk, _depth: UUID(_expect(content, str)),
    "$path": lambda content, _walk, _depth: Path(_expect(content, str)),
    "$posix_path": lambda content, _walk, _depth: PurePosixPath(_expect(content, str)),
    "$windows_path": lambda content, _walk, _depth: PureWindowsPath(_expect(content, str)),
    "$success": lambda content, walk, depth: Success(_read(content, walk, depth - 1)),
    "$failure": lambda content, walk, depth: Failure(_read(content, walk, depth - 1)),
    "$some": lambda content, walk, depth: Some(_read(content, walk, depth - 1)),
    "$nothing": lambda content, _walk, _depth: _expect_nothing(content),
    "$enum": _read_enum,
    "$flag": _read_flag,
    "$object": _read_object,
    "$error": _read_error,
}
