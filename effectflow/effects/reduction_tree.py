"""The tree in which values are combined, group by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Group", "ReductionTree"]

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Group(Generic[B]):
    """Values that are to become one.

    Attributes:
        round: the round of the tree that combines them, from 1.
        number: which group of that round it is, from 0.
        values: at least one, in the order of their items.
    """

    round: int
    number: int
    values: list[B]


class ReductionTree(Generic[B]):
    """Groups values in the order of their items, in whichever order they come.

    It holds the values that wait for their neighbours, and nothing else.
    """

    def __init__(self, fan_in: int) -> None:
        self.fan_in = fan_in
        self._waiting: list[dict[int, dict[int, B]]] = []

    def add(self, level: int, number: int, value: B) -> Group[B] | None:
        """Take the value of an item (level 0) or of a group (its round); give the group it completes."""
        if level == len(self._waiting):
            self._waiting.append({})
        parent, place = divmod(number, self.fan_in)
        group = self._waiting[level].setdefault(parent, {})
        group[place] = value
        return self._take(level, parent) if len(group) == self.fan_in else None

    def take_incomplete(self) -> Group[B] | None:
        """Once there is no further item: a group of the lowest round that has one. None at the root."""
        for level, groups in enumerate(self._waiting):
            for parent, group in groups.items():
                is_root = 0 < level == len(self._waiting) - 1 and len(group) == 1
                return None if is_root else self._take(level, parent)
        return None

    @property
    def root(self) -> B:
        """The value that is left, once no group is."""
        return self._waiting[-1][0][0]

    def positions(self, group: Group[B]) -> range:
        """Those of the items that a group is made of, and of such as would have completed it."""
        size = self.fan_in**group.round
        return range(group.number * size, (group.number + 1) * size)

    def _take(self, level: int, parent: int) -> Group[B]:
        group = self._waiting[level].pop(parent)
        return Group(level + 1, parent, [group[place] for place in sorted(group)])
