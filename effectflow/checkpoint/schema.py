"""Convert dataclasses to and from plain data. Their annotations define the form on disk.

A field with a default is omitted if it has that value. Unknown fields are ignored when read. Values
that do not have the annotated type are rejected. Every `float` is a time or a duration, in seconds.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from effectflow.checkpoint.values import Tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LATEST = 253_402_300_799
"""The last second of the year 9999, the last one of `datetime`, in seconds since the epoch."""

C = TypeVar("C")
T = TypeVar("T", bound="DataclassInstance")

_Convert = Callable[[Any], Any]


@dataclass_transform(frozen_default=True)
def frozen(cls: type[C]) -> type[C]:
    """Make a class a dataclass with slots that is frozen for type checkers only.

    For small classes of which each step and each run creates many: `frozen=True` makes `__init__` four
    times as slow.
    """
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)


class Schema(Generic[T]):
    """Writes and reads the instances of one dataclass. A `tag` is saved with them, as `entry`.

    `write` returns plain data, and `read` the instance that plain data represents. `read` raises
    KeyError, TypeError or ValueError for other data.

    Both are compiled, as dataclasses compile `__init__`, because they run for each entry of a journal,
    and a loop over the fields takes up to three times as long. They are compiled on first use, because
    commands such as `list` use few of them.
    """

    def __init__(self, kind: type[T], tag: str | None) -> None:
        self.tag = tag
        self._kind = kind

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self._kind)

    @cached_property
    def write(self) -> Callable[[T], dict[str, Tree]]:
        return _write_function(self._kind, self._hints, self.tag)

    @cached_property
    def read(self) -> Callable[[Mapping[str, Any]], T]:
        return _read_function(self._kind, self._hints, self.tag)


_schemas: dict[type, Schema[Any]] = {}


def schema_of(kind: type[T], tag: str | None = None) -> Schema[T]:
    """Return the schema of a dataclass. The first call decides on its tag."""
    return _schemas.get(kind) or _schemas.setdefault(kind, Schema(kind, tag))


def _write_function(
    kind: type[DataclassInstance], hints: Mapping[str, Any], tag: str | None
) -> Callable[[Any], dict[str, Tree]]:
    """Return the function that writes an instance."""
    scope: dict[str, Any] = {}
    required = [] if tag is None else [f"'entry': {tag!r}"]
    optional = ""
    for one in dataclasses.fields(kind):
        name, written = one.name, f"value.{one.name}"
        write = _writer(hints[name], may_be_none=one.default is not None)
        if write is not None:
            scope[f"write_{name}"] = write
            written = f"write_{name}({written})"
        if one.default is dataclasses.MISSING:
            required.append(f"{name!r}: {written}")
        else:
            scope[f"default_{name}"] = one.default
            optional += f"    if {_differs(name, one.default)}: tree[{name!r}] = {written}\n"
    source = "def write(value):\n    tree = {" + ", ".join(required) + "}\n"
    exec(source + optional + "    return tree\n", scope)
    return scope["write"]


def _read_function(
    kind: type[DataclassInstance], hints: Mapping[str, Any], tag: str | None
) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function that reads an instance."""
    scope: dict[str, Any] = {"kind": kind, "reject": _reject}
    source = "def read(tree):\n"
    if tag is not None:
        source += f"    if tree['entry'] != {tag!r}: reject(tree)\n"
    parts: list[str] = []
    for one in dataclasses.fields(kind):
        name, hint, given = one.name, hints[one.name], f"tree[{one.name!r}]"
        scope[f"read_{name}"] = _reader(hint)
        read = f"read_{name}({given})"
        # Most fields need no call: it is only for values that it may reject.
        kinds = _union_of(hint)
        usual = kinds[0] if len(kinds) == 1 else hint
        if _is_tree(hint):
            read = given
        elif usual in (str, int, bool):
            read = f"part if (part := {given}).__class__ is {usual.__name__} else {read}"
        elif usual is float:
            is_usual = f"(part := {given}).__class__ is float and 0.0 <= part <= {LATEST}"
            read = f"part if {is_usual} else {read}"
        elif _is_dataclass(usual):
            scope[f"schema_{name}"] = schema_of(usual)
            read = f"schema_{name}.read(part) if (part := {given}).__class__ is dict else {read}"
        if one.default is not dataclasses.MISSING:
            scope[f"default_{name}"] = one.default
            read = f"default_{name} if {name!r} not in tree else {read}"
        parts.append(f"({read})")
    exec(f"{source}    return kind({', '.join(parts)})\n", scope)
    return scope["read"]


def _reject(tree: Mapping[str, Any]) -> Never:
    raise ValueError(f"an entry {tree['entry']!r} is out of place")


def _differs(name: str, default: object) -> str:
    """Return the condition that the value of a field differs from its default."""
    if default is None:
        return f"value.{name} is not None"
    # Values of one type: no other than the default is false if the default is.
    return f"value.{name} != default_{name}" if default else f"value.{name}"


def _writer(hint: Any, *, may_be_none: bool = True) -> _Convert | None:
    """Return the function that turns a value of this type into plain data; None if it is plain."""
    if _is_tree(hint):
        return None
    if get_origin(hint) is tuple:
        write_part = _writer(get_args(hint)[0])
        return None if write_part is None else lambda parts: [write_part(part) for part in parts]
    if kinds := _union_of(hint):
        write = _writer(kinds[0]) if len(kinds) == 1 else _write_any
        if write is None or not may_be_none:
            return write
        return lambda value: None if value is None else write(value)
    if _is_enum(hint):
        return str
    if not _is_dataclass(hint):
        return None
    schema = schema_of(hint)
    # Later, because a class may contain itself.
    return lambda value: schema.write(value)


def _write_any(value: DataclassInstance) -> dict[str, Tree]:
    return schema_of(value.__class__).write(value)


def _reader(hint: Any) -> _Convert:
    """Return the function that turns plain data into a value of this type."""
    if _is_tree(hint):
        return lambda tree: tree
    if get_origin(hint) is tuple:
        return _tuple_reader(get_args(hint))
    if kinds := _union_of(hint):
        read = _reader(kinds[0]) if len(kinds) == 1 else _tagged_reader(kinds)
        return lambda tree: None if tree is None else read(tree)
    if _is_enum(hint):
        return hint
    if _is_dataclass(hint):
        schema = schema_of(hint)
        return lambda tree: schema.read(_expect(tree, (dict,)))
    if hint is float:
        return _read_seconds
    if get_origin(hint) is dict:
        read_part = _reader(get_args(hint)[1])
        return lambda tree: {key: read_part(part) for key, part in _expect(tree, (dict,)).items()}
    return lambda tree: _expect(tree, (hint,))


def _tagged_reader(kinds: list[Any]) -> _Convert:
    schemas = {schema.tag: schema for schema in map(schema_of, kinds)}
    return lambda tree: schemas[_expect(tree, (dict,))["entry"]].read(tree)


def _tuple_reader(parts: tuple[Any, ...]) -> _Convert:
    read = _reader(parts[0])
    count = None if parts[-1] is Ellipsis else len(parts)

    def read_tuple(trees: Any) -> tuple[Any, ...]:
        found = tuple([read(tree) for tree in _expect(trees, (list, tuple))])
        if count is not None and len(found) != count:
            raise ValueError(f"expected {count} parts, found {len(found)}")
        return found

    return read_tuple


def _read_seconds(tree: Any) -> Any:
    if not 0 <= _expect(tree, (float, int)) <= LATEST:
        raise ValueError(f"{tree!r} is not a time or a duration in seconds")
    return tree


def _is_tree(hint: Any) -> bool:
    # Resolved hints do not equal the alias, because forward references in them are resolved too.
    return {bool, float, str} <= set(get_args(hint))


def _union_of(hint: Any) -> list[Any]:
    """Return the types of a union besides None; an empty list for any other type."""
    if not isinstance(hint, UnionType) and get_origin(hint) is not Union:
        return []
    return [part for part in get_args(hint) if part is not NoneType]


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _is_dataclass(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _expect(tree: Any, kinds: tuple[type, ...]) -> Any:
    if tree.__class__ not in kinds:
        raise TypeError(f"expected {kinds[0].__name__}, found {type(tree).__name__}")
    return tree
