"""Values out of trees of plain data: the inverse of `writing`."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

from returns.maybe import Maybe, Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint.values.exceptions import (
    error_named,
    put_together,
)
from effectflow.checkpoint.values.known_types import KnownTypes, MalformedValue
from effectflow.checkpoint.values.model import Tree
from effectflow.checkpoint.values.plain import is_plain
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
from effectflow.checkpoint.values.zones import zone_named

__all__ = ["from_tree"]


def from_tree(tree: Tree, *, path: str = "$", types: KnownTypes) -> Any:
    """The value of a tree: the inverse of `to_tree`. Plain data may be the tree itself.

    Raises MalformedValue, with the path of the part, for a tree that `to_tree` did not make or that
    has a class that is not declared.
    """
    if tree.__class__ in CONTAINERS and is_plain(tree, depth=MAX_DEPTH, items=MAX_ITEMS):
        return tree
    try:
        return _read(tree, Walk(types), MAX_DEPTH)
    except Fault as found:
        raise MalformedValue(path + found.path, found.reason) from None


def _read(tree: Any, walk: Walk, depth: int) -> Any:
    kind = tree.__class__
    if kind is not dict and kind is not list:
        if kind not in _PLAIN:
            raise Fault(f"a {kind.__name__} is no part of a saved value")
        return tree
    if depth == 0:
        raise Fault(f"it is nested more than {MAX_DEPTH} levels deep")
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
            raise Fault(f"{key!r} is no text, as keys are")
        if key[:1] == "$":
            raise Fault("a kind of value stands beside other keys")
    try:
        for key, part in tree.items():
            out[key] = _read(part, walk, depth - 1)
    except Fault as found:
        raise found.under(segment_of(key)) from None
    return out


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _read_items(trees: Any, walk: Walk, depth: int) -> list[Any]:
    walk.count(trees)
    out: list[Any] = []
    try:
        out.extend(_read(tree, walk, depth - 1) for tree in trees)
    except Fault as found:
        raise found.under(f"[{len(out)}]") from None
    return out


def _read_tagged(tag: str, content: Any, walk: Walk, depth: int) -> Any:
    reader = _READERS.get(tag)
    if reader is None:
        raise Fault(f"{tag!r} is no kind of value that this version knows")
    try:
        return reader(content, walk, depth)
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, LookupError) as error:
        raise Fault(f"this is no {tag[1:]}: {error}") from None


def _expect(content: Any, kind: type) -> Any:
    if content.__class__ is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(content).__name__}")
    return content


def _expect_nothing(content: Any) -> Maybe[Any]:
    if content is not None:
        raise TypeError(f"expected null, found {content!r}")
    return Nothing


def _listed(content: Any, walk: Walk, depth: int) -> list[Any]:
    return _read_items(_expect(content, list), walk, depth)


def _read_set(content: Any, walk: Walk, depth: int) -> list[Any]:
    parts = _listed(content, walk, depth)
    _check_distinct(parts)
    return parts


def _check_distinct(parts: list[Any]) -> None:
    check_hashes(parts)
    if len(set(parts)) < len(parts):
        raise ValueError("something is in it twice")


def _read_pairs(content: Any, walk: Walk, depth: int) -> dict[Any, Any]:
    walk.count(_expect(content, list))
    pairs = [(key, value) for key, value in (_expect(pair, list) for pair in content)]
    keys = [_read(key, walk, depth - 1) for key, _ in pairs]
    _check_distinct(keys)
    return dict(zip(keys, (_read(value, walk, depth - 1) for _, value in pairs), strict=True))


def _read_moment(kind: type[datetime] | type[time]) -> Callable[[Any, Walk, int], Any]:
    def read(content: Any, _walk: Walk, _depth: int) -> datetime | time:
        if isinstance(content, str):
            return kind.fromisoformat(content)
        text, zone, fold = _expect(content, list)
        moment = kind.fromisoformat(text).replace(fold=_expect(fold, int))
        return moment if zone is None else moment.replace(tzinfo=zone_named(zone, moment))

    return read


def _read_float(content: Any, _walk: Walk, _depth: int) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueError(f"{content!r}")
    return float(content)


def _read_int(content: Any) -> int:
    digits: str = _expect(content, str)
    if len(digits) > MAX_INT_BITS // 4 + len("-0x"):
        raise ValueError(f"it has {len(digits):,} digits")
    return int(digits, 16) if digits.removeprefix("-").startswith("0x") else int(digits)


def _read_fraction(content: Any, _walk: Walk, _depth: int) -> Fraction:
    numerator, denominator = _expect(content, list)
    return Fraction(_read_int(numerator), _read_int(denominator))


def _read_timedelta(content: Any, _walk: Walk, _depth: int) -> timedelta:
    days, seconds, microseconds = (_expect(part, int) for part in _expect(content, list))
    return timedelta(days, seconds, microseconds)


def _read_enum(content: Any, walk: Walk, _depth: int) -> Enum:
    name, member = _expect(content, list)
    kind: Any = walk.types.class_named(name, is_enum=True)
    return kind[member]


def _read_flag(content: Any, walk: Walk, depth: int) -> Enum:
    name, number = _expect(content, list)
    kind: Any = walk.types.class_named(name, is_enum=True)
    if not issubclass(kind, Flag):
        raise TypeError(f"{name} is no flag")
    return kind(_expect(_read(number, walk, depth - 1), int))


def _read_object(content: Any, walk: Walk, depth: int) -> Any:
    name, fields = _expect(content, list)
    values: dict[str, Any] = {}
    walk.count(_expect(fields, dict))
    for part, tree in fields.items():
        try:
            values[part] = _read(tree, walk, depth - 1)
        except Fault as found:
            raise found.under(f".{part}") from None
    return walk.types.build(name, values)


def _read_error(content: Any, walk: Walk, depth: int) -> Exception:
    name, args, state = _expect(content, list)
    kind = error_named(name, walk.types.errors)
    parts = _expect(_read(state, walk, depth), dict)
    return put_together(kind, _listed(args, walk, depth - 1), parts)


_READERS: Mapping[str, Callable[[Any, Walk, int], Any]] = {
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
