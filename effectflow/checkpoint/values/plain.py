"""Plain JSON data, which is its own tree. All other values go through the codec.

Most programs save only plain data, so the codec is imported with the first other value: it needs the
dates, numbers, paths and time zones of the standard library.
"""

from __future__ import annotations

import math
from typing import Any, cast

import orjson

from effectflow.checkpoint.values.classes import KnownTypes
from effectflow.checkpoint.values.limits import SCALARS, Tree, is_plain


def to_tree(value: object, *, path: str = "$", types: KnownTypes) -> Tree:
    """Return the tree of a value.

    Raises NotSerializable, with the path of the part, for what could not be read back exactly.
    """
    if is_scalar(value):
        return cast("Tree", value)
    data = plain_json(value)
    if data is not None:
        return orjson.loads(data)
    from effectflow.checkpoint.values.codec import encode

    return encode(value, path, types)


def from_tree(tree: Tree, *, path: str = "$", types: KnownTypes) -> Any:
    """Return the value of a tree: the inverse of `to_tree`. For plain data this may be the tree itself.

    Raises MalformedValue, with the path of the part, for a tree that does not hold a value, and for a
    class that is not declared.
    """
    if tree.__class__ in SCALARS or plain_json(tree) is not None:
        return tree
    from effectflow.checkpoint.values.codec import decode

    return decode(tree, path, types)


def sorted_json(tree: Tree) -> bytes:
    """Return the JSON of a tree, with the keys of every object in order."""
    return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)


_DOLLAR = ord("$")


def plain_json(value: object, option: int = 0) -> bytes | None:
    """Return the JSON of a list or dict that is a tree and within the limits, or None if unsure.

    orjson alone also accepts subclasses, enums and dates, and writes null for NaN.
    """
    if not is_plain(value):
        return None
    try:
        data = orjson.dumps(value, option=option)
    except TypeError:
        return None
    # `in` finds an integer quickly, and is slow for bytes: it first tries them as an integer.
    if _DOLLAR in data and data.find(b'"$') >= 0:
        return None
    if data.find(b"null") >= 0 and orjson.loads(data) != value:
        return None
    return data


def is_scalar(value: Any) -> bool:
    """Return whether a value is surely its own tree: not for other text, long integers, NaN or lists."""
    cls = value.__class__
    return (
        (cls is str and value.isascii())
        or (cls is int and -(2**63) <= value < 2**64)
        or value is None
        or cls is bool
        or (cls is float and math.isfinite(value))
    )
