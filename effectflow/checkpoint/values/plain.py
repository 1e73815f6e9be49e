"""Plain JSON data, recognised at the speed of C.

Most of what is saved is plain already. Walking it in Python, to write each part as itself, would take
many times what encoding it takes.
"""

from __future__ import annotations

import marshal
from typing import Any

import orjson

__all__ = ["is_plain", "plain_copy"]


def plain_copy(value: Any, *, depth: int, items: int) -> Any:
    """A copy of plain JSON data with less depth and fewer items than so many; None if in doubt."""
    data = _as_json(value)
    if data is None or not _is_within(data, depth, items):
        return None
    copy = orjson.loads(data)
    # A tuple and a NaN come back as what they are not.
    return copy if copy == value else None


def is_plain(tree: Any, *, depth: int, items: int) -> bool:
    """Whether what a decoder gave, which has no tuples and no NaN, is plain; False if in doubt."""
    data = _as_json(tree)
    return data is not None and _is_within(data, depth, items)


def _as_json(value: Any) -> bytes | None:
    """The JSON of built-in types themselves: of no subclass, enum or date, which orjson takes as well."""
    try:
        marshal.dumps(value)
        return orjson.dumps(value)
    except (ValueError, TypeError):
        return None


def _is_within(data: bytes, depth: int, items: int) -> bool:
    """Whether JSON is surely within the bounds, and has no key that names a kind of value."""
    if b"$" in data and b'"$' in data:
        return False
    return data.count(b"[") + data.count(b"{") < depth and len(data) < items
