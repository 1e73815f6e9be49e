"""Convert dataclasses to and from plain data. Their annotations define the form on disk.

A field with a default is omitted if it has that value. Unknown fields are ignored when read. Values
that do not have the annotated type are rejected. Every `float` is a time or a duration, in seconds.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from effectflow.checkpoint.values import Tree

__all__ = ["LATEST", "Schema", "schema_of"]

LATEST = 253_402_300_799
"""The last second of the year 9999, where calendars end, since the epoch."""

T = TypeVar("T")

_Convert = Callable[[Any], Any]


class Schema(Generic[T]):
    """Writes and reads the instances of one dataclass."""

    def __init__(self, kind: type[T], tag: str | None = None) -> None:
        fields = dataclasses.fields(typing.cast(Any, kind))
        hints = typing.get_type_hints(kind)
        self._kind = kind
        self.write: Callable[[T], dict[str, Tree]] = _write_function(fields, hints, tag)
        self._readers = [
            (one.name, _reader(hints[one.name]), one.default is dataclasses.MISSING)
            for one in fields
        ]

    def read(self, tree: Mapping[str, Any]) -> T:
        """Return the instance that plain data represents. Raise KeyError, TypeError or ValueError."""
        parts: dict[str, Any] = {}
        for name, read, is_required in self._readers:
            if name in tree:
                parts[name] = read(tree[name])
            elif is_required:
                raise KeyError(name)
        return self._kind(**parts)


def schema_of(kind: type[T]) -> Schema[T]:
    """Return the schema of a dataclass."""
    schema = _schemas.get(kind)
    if schema is None:
        schema = _schemas[kind] = Schema(kind)
    return schema


_schemas: dict[type, Schema[Any]] = {}


def _schema_of_any(kind: Any) -> Schema[Any]:
    return schema_of(kind)


def _write_function(
    fields: Sequence[dataclasses.Field[Any]], hints: Mapping[str, Any], tag: str | None
) -> Callable[[Any], dict[str, Tree]]:
    """Return the function that writes an instance. `tag` is the name of the entry.

    It is compiled, as dataclasses compile `__init__`, because it runs for each entry of a journal, and a
    loop over the fields takes three times as long.
    """
    scope: dict[str, Any] = {}
    required = [] if tag is None else [f"'entry': {tag!r}"]
    optional: list[str] = []
    for one in fields:
        name, part = one.name, f"value.{one.name}"
        write = _writer(hints[name])
        if write is not None:
            scope[f"write_{name}"] = write
        written = part if write is None else f"write_{name}({part})"
        if one.default is dataclasses.MISSING:
            required.append(f"{name!r}: {written}")
        else:
            scope[f"default_{name}"] = one.default
            # The `!=` of a dataclass is slow.
            differs = "is not" if one.default is None else "!="
            optional.append(f"    if {part} {differs} default_{name}: tree[{name!r}] = {written}\n")
    source = "def write(value):\n    tree = {" + ", ".join(required) + "}\n"
    exec(source + "".join(optional) + "    return tree\n", scope)
    return scope["write"]


def _writer(hint: Any) -> _Convert | None:
    """Return the function that turns a value of this type into plain data; None if it is plain."""
    if _is_tree(hint):
        return None
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        write = _writer(parts[0])
        return None if write is None else lambda values: [write(value) for value in values]
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        write = next((found for part in parts if (found := _writer(part))), None)
        return None if write is None else lambda value: None if value is None else write(value)
    if _is_enum(hint):
        return str
    return _schema_of_any(hint).write if dataclasses.is_dataclass(hint) else None


def _reader(hint: Any) -> _Convert:
    """Return the function that turns plain data into a value of this type."""
    if _is_tree(hint):
        return lambda tree: tree
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return _tuple_reader(parts)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        [read] = [_reader(part) for part in parts if part is not type(None)]
        return lambda tree: None if tree is None else read(tree)
    if _is_enum(hint):
        return hint
    if dataclasses.is_dataclass(hint):
        schema = _schema_of_any(hint)
        return lambda tree: schema.read(_expect(tree, (dict,)))
    if hint is float:
        return _read_seconds
    if get_origin(hint) is dict:
        read_part = _reader(parts[1])
        return lambda tree: {key: read_part(part) for key, part in _expect(tree, (dict,)).items()}
    return lambda tree: _expect(tree, (hint,))


def _read_seconds(tree: Any) -> Any:
    if not 0 <= _expect(tree, (float, int)) <= LATEST:
        raise ValueError(f"{tree!r} is not a time or a duration in seconds")
    return tree


def _is_tree(hint: Any) -> bool:
    # Resolved hints do not equal the alias, because forward references in them are resolved too.
    return {bool, float, str} <= set(get_args(hint))


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _tuple_reader(parts: tuple[Any, ...]) -> _Convert:
    read = _reader(parts[0])
    if len(parts) == 2 and parts[1] is Ellipsis:
        return lambda trees: tuple([read(tree) for tree in _expect(trees, (list, tuple))])
    count = len(parts)

    def read_exactly(trees: Any) -> tuple[Any, ...]:
        found = tuple([read(tree) for tree in _expect(trees, (list, tuple))])
        if len(found) != count:
            raise ValueError(f"expected {count} parts, found {len(found)}")
        return found

    return read_exactly


def _expect(tree: Any, kinds: tuple[type, ...]) -> Any:
    if tree.__class__ not in kinds:
        raise TypeError(f"expected {kinds[0].__name__}, found {type(tree).__name__}")
    return tree
