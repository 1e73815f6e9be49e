"""The walk through a value or its tree: where it is, what it has counted, and how it converts each kind.

`codec` walks. A problem with a part is a `Fault`, and the position of the walk says where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

from effectflow.checkpoint.values.classes import KnownTypes
from effectflow.checkpoint.values.plain import MAX_DEPTH, MAX_ITEMS, KnownParts


class Fault(Exception):
    """A problem with the part of a value at the path where the walk is."""


class Walk:
    """The state of encoding or decoding one value.

    Attributes:
        types: the declared classes.
        known: what was decoded before; None if the tree shares no parts with other ones.
        kinds: the kinds of the declared classes that were met.
        items: the number of items so far.
        path: the keys and indexes that lead to the current part, one for each level.
    """

    __slots__ = ("items", "kinds", "known", "path", "types")

    def __init__(self, types: KnownTypes, known: KnownParts | None = None) -> None:
        self.types = types
        self.known = known
        self.kinds: dict[type, Kind] = {}
        self.items = 0
        self.path: list[object] = []

    def at(self, key: object, convert: Convert, part: Any) -> Any:
        """Convert the part at this key, one level deeper."""
        self.path.append(key)
        converted = convert(part, self)
        self.path.pop()
        return converted

    def count(self, parts: Sized) -> None:
        """Count these items. Raises Fault if the value has too many."""
        self.items += len(parts)
        if self.items > MAX_ITEMS:
            raise Fault(f"with its {len(parts):,} items there are more than {MAX_ITEMS:,} in total")

    def has_room_for(self, objects: list[dict[str, Any]]) -> bool:
        """Return whether a list of objects with these fields is within the limits, and count them."""
        items = self.items + len(objects) * (1 + len(objects[0]))
        if items > MAX_ITEMS or len(self.path) + 1 >= MAX_DEPTH:
            return False
        self.items = items
        return True

    def position(self) -> str:
        """Return the path as text."""
        return "".join(_segment_of(key) for key in self.path if key is not KEY)


KEY = object()
"""Takes the place of a key in the path while this key itself is converted."""

Convert: TypeAlias = Callable[[Any, Walk], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How the values of one kind are saved.

    Attributes:
        tag: the key of the object that they become.
        encode: returns the content of the tag. Raises Fault.
        decode: returns the value of a content. May raise any exception for a malformed one.
    """

    tag: str
    encode: Convert
    decode: Convert


def _segment_of(key: object) -> str:
    """Return the path segment for the value of a key or index, or for the result of a method."""
    if isinstance(key, str) and key.removesuffix("()").isidentifier():
        return f".{key}"
    return f"[{key!r}]"


def encodable(text: str) -> str:
    """Return the text. Raises Fault for one that no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault(
            f"the text has a lone surrogate at {error.start}, which no encoding can hold: os.fsencode() "
            "returns the bytes of a file name, text.encode(errors='backslashreplace') those of other text"
        ) from None
    return text
