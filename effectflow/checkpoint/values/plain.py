"""Plain JSON data, which is its own tree. All other values go through the codec.

Most programs save only plain data, so the codec is imported with the first other value: it needs the
dates, numbers, paths and time zones of the standard library.
"""

from __future__ import annotations

import gc
import math
from base64 import b64decode
from binascii import b2a_base64
from typing import Any, TypeAlias, TypeGuard, Union

import orjson

from effectflow.checkpoint.values.classes import KnownTypes
from effectflow.effects.errors import Copyable

Tree: TypeAlias = Union[bool, int, float, str, bytes, "list[Tree]", "dict[str, Tree]", None]
"""Plain data, as JSON has it: the form in which every value is saved.

The content of a `$bytes` is bytes, which JSON has as base64.
"""


class KnownParts:
    """What was decoded of trees that share parts.

    Attributes:
        values: the values of parts, by the `id` of the part, which is kept with its value.
        passed: the checks of their type that these values have passed; see `of_type`.
    """

    def __init__(self) -> None:
        self.values: dict[int, tuple[Tree, Any]] = {}
        self.passed: dict[int, set[Any]] = {}


MAX_DEPTH = 64
"""The number of levels that a value may be nested."""

MAX_ITEMS = 1_000_000
"""The number of items that all lists, tuples, sets, dicts and objects of one value may have together."""

MAX_INT_BITS = 131_072
"""The size of an integer. Reducing a fraction of two such integers takes quadratic time."""


class MalformedValue(Copyable, ValueError):
    """Stored data does not hold a value that can be read back.

    Attributes:
        path: the part of the data that is wrong, such as `$.items[3]`.
        reason: why it cannot be read.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def to_tree(value: object, *, path: str = "$", types: KnownTypes) -> Tree:
    """Return the tree of a value.

    Raises NotSerializable, with the path of the part, for what could not be read back exactly.
    """
    if is_scalar(value):
        return value
    found = _plain_json(value)
    if found is not None:
        return _copy_of(value, *found)
    from effectflow.checkpoint.values.codec import encode

    return encode(value, path, types)


def short_plain(value: object, most: int) -> tuple[bool, Tree]:
    """Return whether a value is surely plain data, and that itself, or a copy if it is long.

    `most` is the number of bytes that its JSON has at most if it is not long.
    """
    found = _plain_json(value)
    if found is None:
        return False, None
    tree: Any = value
    return True, tree if len(found[0]) <= most else _copy_of(value, *found)


def from_tree(
    tree: Tree, *, path: str = "$", types: KnownTypes, known: KnownParts | None = None
) -> Any:
    """Return the value of a tree: the inverse of `to_tree`. It has no list or dict of the tree.

    Parameters:
        known: what was decoded before, for a tree that shares parts with other ones: each part that is
            text or hashable is decoded once, and the values share it.

    Raises MalformedValue, with the path of the part, for a tree that does not hold a value, and for a
    class that is not declared.
    """
    if tree.__class__ in SCALARS:
        return tree
    if known is None:
        if _is_own_value(tree):
            return tree.copy()
        found = _plain_json(tree)
        if found is not None:
            return _copy_of(tree, *found)
    from effectflow.checkpoint.values.codec import decode

    return decode(tree, path, types, known)


def write_json(tree: Tree, option: int = 0) -> bytes:
    """Return the JSON of a tree, with its bytes as base64."""
    return orjson.dumps(tree, default=base64_json, option=option)


def sorted_json(tree: Tree) -> bytes:
    """Return the JSON of a tree, with the keys of every object in order."""
    return write_json(tree, orjson.OPT_SORT_KEYS)


_PIECE = 3 << 18
"""The number of bytes that are written as base64 in one call, which lets no other thread run."""


def base64_json(data: object) -> orjson.Fragment:
    """Return the JSON of the bytes in a tree. Raises TypeError for anything else."""
    if not isinstance(data, bytes):
        raise TypeError(f"a {type(data).__name__} cannot be part of a saved value")
    view = memoryview(data)
    pieces = (
        b2a_base64(view[start : start + _PIECE], newline=False)
        for start in range(0, len(view), _PIECE)
    )
    # Text that needs no escapes is copied faster than it is written.
    return orjson.Fragment(b'"' + b"".join(pieces) + b'"')


_DOLLAR = ord("$")


def plain_json(value: object, option: int = 0) -> bytes | None:
    """Return the JSON of a list or dict that is a tree and within the limits, or None if unsure.

    orjson alone also accepts subclasses, enums and dates, and writes null for NaN.
    """
    found = _plain_json(value, option)
    return None if found is None else found[0]


def _plain_json(value: object, option: int = 0) -> tuple[bytes, Tree] | None:
    """Return the JSON of `plain_json`, and a copy of the value if it had to be made."""
    if not _is_plain(value):
        return None
    try:
        data = orjson.dumps(value, option=option)
    except TypeError:
        return None
    # `in` finds an integer quickly, and is slow for bytes: it first tries them as an integer.
    if _DOLLAR in data and data.find(b'"$') >= 0:
        return None
    # `rfind` takes about half as long as `find`.
    if data.rfind(b"null") < 0:
        return data, None
    copied = orjson.loads(data)
    return (data, copied) if copied == value else None


def _copy_of(value: Any, data: bytes, copied: Tree) -> Tree:
    """Return a copy of plain data, given what `_plain_json` returns for it."""
    if copied is not None:
        return copied
    return value.copy() if has_no_parts(data) else orjson.loads(data)


def has_no_parts(data: bytes) -> bool:
    """Return whether the JSON of a list or dict surely has no other list or dict in it."""
    return data.rfind(b"[", 1) < 0 and data.rfind(b"{", 1) < 0


SCALARS = frozenset({str, int, float, bool, type(None)})
"""The classes of the leaves of a tree."""

_CONTAINERS = frozenset({list, dict})
_PLAIN = SCALARS | _CONTAINERS
_FEW = 4


def _is_flat(value: Any) -> bool:
    """Return whether a value is a list or dict of JSON scalars, and not too long."""
    kind = value.__class__
    if kind is dict:
        parts = value.values()
    elif kind is list:
        parts = value
    else:
        return False
    return len(parts) * _FEW < MAX_ITEMS and SCALARS.issuperset(map(type, parts))


def _is_own_value(tree: Any) -> TypeGuard[dict[str, Tree]]:
    """Return whether a tree is surely its own value: a dict of a few scalars, as many outputs are."""
    if tree.__class__ is not dict or len(tree) > _FEW:
        return False
    has_own_keys = all(key.__class__ is str and "$" not in key for key in tree)
    return has_own_keys and SCALARS.issuperset(map(type, tree.values()))


def _is_plain(value: Any) -> bool:
    """Return whether a list or dict consists of JSON types and is within the limits, or False if unsure.

    Keys and numbers are not looked into. A loop over all parts in Python would take many times as long
    as encoding them.
    """
    if value.__class__ not in _CONTAINERS:
        return False
    # Nearly all values are one of these two: the few arguments of a step, or flat.
    if value.__class__ is dict and len(value) <= _FEW:
        for part in value.values():
            if part.__class__ not in SCALARS and not _is_flat(part):
                break
        else:
            return True
    elif _is_flat(value):
        return True
    # An object that is referenced twice counts twice: lists that contain each other are endless.
    items, level = 0, [value]
    for _ in range(MAX_DEPTH):
        items += sum(map(len, level))
        if items > MAX_ITEMS:
            return False
        parts = gc.get_referents(*level)
        kinds = set(map(type, parts))
        if not kinds <= _PLAIN:
            return False
        if kinds.isdisjoint(_CONTAINERS):
            return True
        level = [part for part in parts if part.__class__ in _CONTAINERS]
    return False


def bytes_of(content: Any) -> bytes:
    """Return bytes that a tree has, as base64 if nobody has read them. Raises ValueError or TypeError."""
    return content if isinstance(content, bytes) else b64decode(content, validate=True)


def are_scalars(parts: list[Any]) -> bool:
    """Return whether all parts are surely their own trees, as `is_scalar` says of one.

    That is found out together, because a call for each would take several times as long.
    """
    if not SCALARS.issuperset(map(type, parts)):
        return False
    try:
        data = orjson.dumps(parts)
    except TypeError:
        return False
    # orjson writes null for NaN, too.
    return data.rfind(b"null") < 0 or data.count(b"null") == parts.count(None)


def is_scalar(value: Any) -> TypeGuard[bool | int | float | str | None]:
    """Return whether a value is surely its own tree: not for other text, long integers, NaN or lists."""
    cls = value.__class__
    return (
        (cls is str and value.isascii())
        or (cls is int and -(2**63) <= value < 2**64)
        or value is None
        or cls is bool
        or (cls is float and math.isfinite(value))
    )
