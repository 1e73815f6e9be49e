"""Plain JSON data, recognised at the speed of C.

Most of what is saved is plain already. Walking it in Python, to write each part as itself, would take
many times what encoding it takes.
"""

from __future__ import annotations

import gc
from typing import Any

import orjson

__all__ = ["is_plain", "plain_copy"]

_CONTAINERS = frozenset({list, dict})
_PLAIN = frozenset({str, int, float, bool, type(None)}) | _CONTAINERS


def plain_copy(value: Any, *, depth: int, items: int) -> Any:
    """A copy of plain JSON data with less depth and fewer items than so many; None if in doubt."""
    data = _as_json(value, depth, items)
    if data is None:
        return None
    copy = orjson.loads(data)
    # A NaN comes back as what it is not.
    return copy if copy == value else None


def is_plain(tree: Any, *, depth: int, items: int) -> bool:
    """Whether what a decoder gave, which has no NaN, is plain; False if in doubt."""
    return _as_json(tree, depth, items) is not None


def _as_json(value: Any, depth: int, items: int) -> bytes | None:
    """The JSON of built-in types themselves, if it is surely within the bounds and tags nothing.

    orjson alone would take subclasses, enums and dates as well.
    """
    if not _is_small(value, depth, items):
        return None
    try:
        data = orjson.dumps(value)
    except TypeError:
        return None
    return None if b"$" in data and b'"$' in data else data


def _is_small(value: Any, containers: int, items: int) -> bool:
    """Whether lists and maps, fewer than so many, have parts of the plain types alone.

    One that is there twice counts twice: a few that hold one another make a tree without end.
    """
    level = [value]
    while level:
        parts = gc.get_referents(*level)
        kinds = set(map(type, parts))
        containers -= len(level)
        items -= len(parts)
        if containers <= 0 or items < 0 or not kinds <= _PLAIN:
            return False
        level = (
            [part for part in parts if part.__class__ in _CONTAINERS] if kinds & _CONTAINERS else []
        )
    return True
