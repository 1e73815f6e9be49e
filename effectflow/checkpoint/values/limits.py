"""The size limits of saved values, and how a value or stored data that breaks one is reported."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection
from typing import Any, TypeAlias, Union

Tree: TypeAlias = Union[bool, int, float, str, "list[Tree]", "dict[str, Tree]", None]
"""Plain data, as JSON has it: the form in which every value is saved."""

MAX_DEPTH = 64
"""The number of levels that a value may be nested."""

MAX_ITEMS = 1_000_000
"""The number of items that all lists, tuples, sets, dicts and objects of one value may have together."""

MAX_INT_BITS = 131_072
"""The size of an integer. Reducing a fraction of two such integers takes quadratic time."""

MAX_SAME_HASH = 100
"""The number of set items or dict keys that may share a hash: each is compared with those before it."""

MAX_PARTS = 4_000_000
"""The number of lists, maps, keys and items in one tree. A part of two bytes takes fifty in memory."""

MAX_ENTRY_LEVELS = 240
"""The number of levels that lists and maps of an entry may be nested.

A value needs at most three for each of its own levels. orjson writes 254 levels, and an entry must fit
into a checkpoint.
"""

MAX_COMPACT_BYTES = 64 * 1024 * 1024
"""The size of decompressed data: a few compressed bytes can expand to gigabytes."""


class MalformedValue(ValueError):
    """Stored data does not hold a value that can be read back.

    Attributes:
        path: the part of the data that is wrong, such as `$.items[3]`.
        reason: what is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class Fault(Exception):
    """A problem with one part of a value. Each level above it adds its segment to the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path

    def under(self, segment: str) -> Fault:
        """Return the same problem, seen from one level above."""
        return Fault(self.reason, segment + self.path)


def segment_of(key: object) -> str:
    """Return the path segment for the value of a key."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def check_hashes(parts: Collection[Any]) -> None:
    """Raise Fault for set items or dict keys that would take quadratic time to compare."""
    hashes = Counter(map(hash, parts))
    if len(hashes) < len(parts) and max(hashes.values()) > MAX_SAME_HASH:
        raise Fault(f"more than {MAX_SAME_HASH} of its items have the same hash")


SCALARS = frozenset({str, int, float, bool, type(None)})
"""The classes of the leaves of a tree."""

_CONTAINERS = frozenset({list, dict})
_PLAIN = SCALARS | _CONTAINERS


_FEW = 4


def _is_flat(value: Any) -> bool:
    """Return whether a value is a list or dict of JSON scalars, and not too long."""
    if value.__class__ is dict:
        return SCALARS.issuperset(map(type, value.values())) and len(value) * _FEW < MAX_ITEMS
    return (
        value.__class__ is list
        and SCALARS.issuperset(map(type, value))
        and len(value) * _FEW < MAX_ITEMS
    )


def is_plain(value: Any) -> bool:
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
    # What is referenced twice counts twice: a few lists that contain each other make an endless tree.
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
