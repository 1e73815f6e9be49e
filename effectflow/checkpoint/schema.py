"""Dataclasses as plain data, and back: the form on disk is derived from the annotations.

A field with a default is left out where it has that value. Unknown fields are ignored when read. What is
read has the annotated types, or it is refused.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from effectflow.checkpoint.values import Tree

__all__ = ["Schema", "schema_of"]

T = TypeVar("T")

_Convert = Callable[[Any], Any]

_NUMBERS = (float, int)


class Schema(Generic[T]):
    """How the instances of one dataclass are written and read."""

    def __init__(self, kind: type[T]) -> None:
        fields = dataclasses.fields(typing.cast(Any, kind))
        hints = typing.get_type_hints(kind)
        self._kind = kind
        required = [one.name for one in fields if one.default is dataclasses.MISSING]
        optional = [one for one in fields if one.default is not dataclasses.MISSING]
        self._required = tuple(required)
        self._optional = tuple(one.name for one in optional)
        self._defaults = tuple(one.default for one in optional)
        self._take_required = _getter(self._required)
        self._take_optional = _getter(self._optional)
        writers = {name: write for name in hints if (write := _writer(hints[name]))}
        self._writers = [(name, writers[name]) for name in required if name in writers]
        self._optional_writers = [writers.get(name) for name in self._optional]
        self._readers = [
            (one.name, _reader(hints[one.name]), one.name in required) for one in fields
        ]

    def write(self, value: T) -> dict[str, Tree]:
        """Return the plain data of an instance."""
        tree: dict[str, Any] = dict(zip(self._required, self._take_required(value), strict=True))
        parts = self._take_optional(value)
        if parts != self._defaults:
            for name, part, default, write in zip(
                self._optional, parts, self._defaults, self._optional_writers, strict=True
            ):
                if part is not default and part != default:
                    tree[name] = part if write is None else write(part)
        for name, write in self._writers:
            tree[name] = write(tree[name])
        return tree

    def read(self, tree: Mapping[str, Any]) -> T:
        """Return the instance that plain data stands for. Raises KeyError, TypeError or ValueError."""
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


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) >= 2:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _writer(hint: Any) -> _Convert | None:
    """Return what makes plain data of a value of this type; None if it is plain already."""
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
    """Return what makes a value of this type of plain data."""
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
    kinds = _NUMBERS if hint is float else (get_origin(hint) or hint,)
    return lambda tree: _expect(tree, kinds)


def _is_tree(hint: Any) -> bool:
    # Resolved hints do not equal the alias: the forward references in it are resolved as well.
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
