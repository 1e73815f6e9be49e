"""Save large parts of outputs once. Later outputs with the same part refer to the entry that has it.

Outputs that hold a whole state are long and change little from step to step. The idea comes from
content-addressed storage, as in git: equal parts have equal digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import orjson

from effectflow.checkpoint.entries import Completed
from effectflow.checkpoint.values import Tree

_Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a part of a tree."""

_LEAST = 1024
"""The size in bytes above which a reference saves space."""


class SharedParts:
    """The large parts of the outputs that one life of a run has recorded, by their digests."""

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, _Path]] = {}

    def shorten(self, completed: Completed, sequence: int) -> Completed:
        """Return the entry to record at `sequence`, without the parts that earlier entries have."""
        references: list[Tree] = []
        output = self._shortened(completed.output, (), sequence, references)
        return replace(completed, output=output, shared=references or None)

    def _shortened(self, tree: Tree, path: _Path, sequence: int, references: list[Tree]) -> Tree:
        if not isinstance(tree, str | list | dict):
            return tree
        data = orjson.dumps(tree)
        if len(data) < _LEAST:
            return tree
        digest = hashlib.sha256(data).digest()
        if digest in self._places:
            holder, source = self._places[digest]
            references.append([list(path), holder, list(source)])
            return None
        self._places[digest] = sequence, path
        if isinstance(tree, dict):
            return {
                key: self._shortened(part, (*path, key), sequence, references)
                for key, part in tree.items()
            }
        if isinstance(tree, list):
            return [
                self._shortened(part, (*path, index), sequence, references)
                for index, part in enumerate(tree)
            ]
        return tree


def restored(completed: Completed, sequence: int, outputs: Mapping[int, Tree]) -> Completed:
    """Return an entry of `shorten` with its whole output, given the outputs of the earlier entries.

    Raises LookupError, TypeError or ValueError if a reference leads nowhere.
    """
    whole: dict[str, Any] = {"": completed.output}
    for path, holder, source in cast("Sequence[Any]", completed.shared):
        part: Any = whole[""] if holder == sequence else outputs[holder]
        for key in source:
            part = part[key]
        # A copy, because a change of one output must not change another.
        part = part if isinstance(part, str) else orjson.loads(orjson.dumps(part))
        *outer, last = ["", *path]
        place: Any = whole
        for key in outer:
            place = place[key]
        place[last] = part
    return replace(completed, output=whole[""], shared=None)
