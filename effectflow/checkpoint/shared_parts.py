"""Save large parts of outputs once. Later outputs with the same part refer to the entry that has it.

Outputs that hold a whole state are long and change little from step to step. The idea comes from
content-addressed storage, as in git: equal parts have equal digests. A list that grows at its end
refers to the list that it continues, so each of its items is saved and read once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

from effectflow.checkpoint.entries import MAX_ENTRY_BYTES, Completed, Entry
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.encodings import MAX_ENTRY_LEVELS
from effectflow.checkpoint.values.plain import has_no_parts

_Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a part of a tree."""

_LEAST = 1024
"""The size in bytes above which a reference saves space."""

_MOST_LISTS = 256
"""The number of lists that another one is compared with, to find the one that it continues."""

_COMMA = ord(",")


class SharedParts:
    """The large parts of the outputs that a life of a run has recorded, by their digests.

    From the lives before, it has those of the newest output that had parts of earlier ones.
    """

    __slots__ = (
        "_before",
        "_lists",
        "_places",
    )

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._places: dict[bytes, tuple[int, _Path]] = {}
        # The lengths of the JSON of the newest lists, and their numbers of items, by their digests.
        self._lists: dict[bytes, tuple[int, int]] = {}
        self._before = _newest_shortened(entries)

    def copy(self) -> SharedParts:
        """Return the same parts, to which others can be added."""
        copied = copy(self)
        copied._places, copied._lists = {**self._places}, {**self._lists}
        return copied

    def shorten(self, completed: Completed, sequence: int) -> Completed:
        """Return the entry to record at `sequence`, without the parts that earlier entries have."""
        if self._before is not None:
            number, output = self._before
            self._before = None
            self._shorten(output, number)
        shortening = self._shorten(completed.output, sequence)
        if not shortening.references:
            return completed
        return replace(completed, output=shortening.output, shared=shortening.references)

    def _shorten(self, output: Tree, sequence: int) -> _Shortening:
        shortening = _Shortening(output, self._places, self._lists, sequence)
        self._places |= shortening.places
        self._lists |= shortening.lists
        for digest in list(self._lists)[:-_MOST_LISTS]:
            del self._lists[digest]
        return shortening


def _newest_shortened(entries: Sequence[Entry]) -> tuple[int, Tree] | None:
    """Return the number and the output of the newest entry that had parts of earlier ones."""
    for number in range(len(entries), 0, -1):
        entry = entries[number - 1]
        if isinstance(entry, Completed) and entry.shared is not None:
            return number, entry.output
    return None


class _Shortening:
    """How one output is shortened.

    Attributes:
        output: the output without what earlier outputs have.
        places, lists: the large parts of this output, as in `SharedParts`.
        references: what the entry records as `shared`.
    """

    def __init__(
        self,
        output: Tree,
        earlier: dict[bytes, tuple[int, _Path]],
        lists: dict[bytes, tuple[int, int]],
        sequence: int,
    ) -> None:
        self._earlier = earlier
        self._earlier_lists = lists
        self._sequence = sequence
        self.places: dict[bytes, tuple[int, _Path]] = {}
        self.lists: dict[bytes, tuple[int, int]] = {}
        self.references: list[Tree] = []
        self._texts: dict[int, str] = {}
        self.output = self._shortened(output, (), self._json_of(output))

    def _json_of(self, tree: Tree) -> bytes:
        return orjson.dumps(tree, default=self._text_of)

    def _text_of(self, data: bytes) -> str:
        """Return text that takes the place of bytes: so they are hashed once, and not written."""
        text = self._texts.get(id(data))
        if text is None:
            digest = hashlib.sha256(data).hexdigest()
            text = self._texts[id(data)] = digest.ljust(_LEAST if len(data) >= _LEAST else 0)
        return text

    def _shortened(self, tree: Tree, path: _Path, data: bytes) -> Tree:
        """Return a tree, given its JSON, without its parts that earlier outputs have."""
        if len(data) < _LEAST or not isinstance(tree, str | list | dict):
            return tree
        # Without its last byte, the JSON of a list begins that of each list that continues it.
        text = memoryview(data)[:-1]
        digest = hashlib.sha256(text).digest()
        if self._refer(digest, path):
            return None
        self.places.setdefault(digest, (self._sequence, path))
        if isinstance(tree, str):
            return tree
        if isinstance(tree, dict):
            return {
                key: self._shortened(part, (*path, key), self._json_of(part))
                for key, part in tree.items()
            }
        count = self._refer_to_beginning(text, path)
        self.lists[digest] = len(text), len(tree)
        rest = tree[count:]
        if has_no_parts(data) and data.rfind(b'"') < 0:
            # Numbers, none of which is long.
            return rest
        texts = map(self._json_of, rest)
        return [
            part if len(text) < _LEAST else self._shortened(part, (*path, index), text)
            for index, (part, text) in enumerate(zip(rest, texts, strict=True), count)
        ]

    def _refer(self, digest: bytes, path: _Path) -> bool:
        found = self._earlier.get(digest)
        if found is None:
            return False
        holder, source = found
        self.references.append([list(path), holder, list(source)])
        return True

    def _refer_to_beginning(self, text: memoryview, path: _Path) -> int:
        """Refer to the longest list that the list with this JSON continues. Return its length."""
        newest, done, hashed = None, 0, hashlib.sha256()
        for length in sorted({length for length, _ in self._earlier_lists.values()}):
            if length < len(text) and text[length] == _COMMA:
                hashed.update(text[done:length])
                done = length
                digest = hashed.digest()
                if digest in self._earlier_lists:
                    newest = digest
        if newest is None:
            return 0
        self._refer(newest, path)
        return self._earlier_lists[newest][1]


class Extent(NamedTuple):
    """How large a part is: a number of bytes that its JSON has at least, and its levels."""

    size: int = 1
    levels: int = 0


_SCALAR = Extent()


class LongOutput:
    """A long output that the journal gave to a fiber, which may pass it on to the next step.

    The digest of a long state takes as long as saving it. So the next steps that get this one, or one of
    its long parts, as it came from the journal, do not compare it with what they got before.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._shape = _shape_of(value)

    def as_it_came(self) -> Collection[int]:
        """Return the `id`s of the output and its long parts; none if a part was added or replaced."""
        shape = _shape_of(self._value)
        if len(shape) != len(self._shape):
            return ()
        pairs = zip(shape, self._shape, strict=True)
        if any(now is not then or many != before for (now, many), (then, before) in pairs):
            return ()
        return [id(self._value), *(id(part) for part, many in shape if many >= _MANY)]


_MANY = 100
"""The number of items from which a part of an output is long."""


def _shape_of(value: Any) -> list[tuple[object, int]]:
    """Return a value and the parts of a mapping or an object, with the number of items in each."""
    cls = value.__class__
    parts: Any = value if cls is dict else getattr(value, "__dict__", {})
    if is_record(cls):
        parts = {name: getattr(value, name, None) for name in record_of(cls).parameters}
    whole: list[Any] = [value, *parts.values()]
    return [(part, len(part) if part.__class__ in (list, dict) else 0) for part in whole]


def restored(
    completed: Completed, outputs: Mapping[int, Tree], extents: dict[int, Extent]
) -> Completed:
    """Return an entry of `shorten` with its whole output, given the outputs of the earlier entries.

    The output has the very parts of the earlier ones, so nothing may change them.

    Parameters:
        extents: those of the parts that are shared, by their `id`: one dict for a whole journal.

    Raises LookupError, TypeError or ValueError if a reference leads nowhere, or the output is too large.
    """
    whole: dict[str, Any] = {"": completed.output}
    size, continued = 0, list[tuple[list[Any], list[Any]]]()
    for path, holder, source in cast("Sequence[Any]", completed.shared):
        part: Any = outputs[holder]
        for key in source:
            part = part[key]
        extent = _extent_of(part, extents)
        size += extent.size
        if size > MAX_ENTRY_BYTES:
            raise ValueError(f"with what it refers to, it is larger than {MAX_ENTRY_BYTES:,} bytes")
        if len(path) + extent.levels > MAX_ENTRY_LEVELS:
            raise ValueError(f"with what it refers to, it has more than {MAX_ENTRY_LEVELS} levels")
        *outer, last = ["", *path]
        place: Any = whole
        for key in outer:
            place = place[key]
            if id(place) in extents:
                raise ValueError("it would change a part of another output")
        if place[last] is None:
            place[last] = part
        elif part.__class__ is place[last].__class__ is list:
            place[last] = [*part, *place[last]]
            continued.append((place[last], part))
        else:
            raise TypeError("only a list can continue another one")
    for grown, part in continued:
        begun, rest = _extent_of(part, extents), _extent_of(grown[len(part) :], {})
        extents[id(grown)] = Extent(begun.size + rest.size, max(begun.levels, rest.levels))
    return replace(completed, output=whole[""])


def _extent_of(part: Any, extents: dict[int, Extent]) -> Extent:
    """Return the extent of a part, and note those of all in it."""
    if part.__class__ is str:
        return Extent(len(part))
    if part.__class__ not in (list, dict):
        return _SCALAR
    extent = extents.get(id(part))
    if extent is None:
        size, levels = 2, 0
        for one in part.values() if part.__class__ is dict else part:
            inner = _extent_of(one, extents)
            size += inner.size
            levels = max(levels, inner.levels)
        extent = extents[id(part)] = Extent(size, levels + 1)
    return extent
