"""What writing a value and reading it back share: its limits, and what is wrong where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sized
from typing import Any

from effectflow.checkpoint.values.known_types import KnownTypes

__all__ = [
    "CONTAINERS",
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_ITEMS",
    "Fault",
    "Walk",
    "check_hashes",
    "segment_of",
]

MAX_DEPTH = 64
"""How deep a value may be nested."""

MAX_ITEMS = 1_000_000
"""How many items the lists, tuples, sets, dicts and objects of one value may have in all."""

MAX_INT_BITS = 131_072
"""How large an integer may be: a fraction of two takes quadratic time to be made."""

MAX_SAME_HASH = 100
"""How many items of a set, or keys of a dict, may have one hash: each is compared with those before."""

CONTAINERS = (dict, list)
"""What plain data is made of, besides texts, numbers, booleans and null."""


class Fault(Exception):
    """A fault on its way up; each level puts its own segment in front of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path

    def under(self, segment: str) -> Fault:
        """The same, one level up."""
        return Fault(self.reason, segment + self.path)


def segment_of(key: object) -> str:
    """How a path says that it goes to the value of this key."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


class Walk:
    """One value on its way to its tree or back: the classes that it may have, and the items so far."""

    def __init__(self, types: KnownTypes) -> None:
        self.types = types
        self.items = 0

    def count(self, parts: Sized) -> None:
        """Take these along. Raises Fault if there are too many."""
        self.items += len(parts)
        if self.items > MAX_ITEMS:
            raise Fault(f"with its {len(parts):,} items there are more than {MAX_ITEMS:,} in all")


def check_hashes(parts: Collection[Any]) -> None:
    """Raise Fault for parts of a set, or keys of a dict, that would take quadratic time to compare."""
    hashes = Counter(map(hash, parts))
    if len(hashes) < len(parts) and max(hashes.values()) > MAX_SAME_HASH:
        raise Fault(f"more than {MAX_SAME_HASH} of its items have the same hash")
