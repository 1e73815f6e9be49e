"""A part of a job's result: what has come of one item, or of many that are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.entries import Arguments
from effectflow.checkpoint.values import digest_of
from effectflow.workflows.mapreduce.results import DeadLetter

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """What has come of items that follow one another.

    Attributes:
        value: what they gave; nothing if all of them are dead letters.
        dead_letters: those that failed, in order.
        count: how many they are.
        first, last: the keys of the first and the last.
        digest: the key of one item; of many, a digest that is another one for other keys.
        retry: the retry of the dead letters that brought the latest of the value; 0 for none.
        is_reduced: whether `reduce` made the value.
    """

    value: Maybe[Any]
    dead_letters: tuple[DeadLetter[Any], ...]
    count: int
    first: str
    last: str
    digest: str
    retry: int = 0
    is_reduced: bool = False

    @staticmethod
    def of_item(key: str, value: object, *, retry: int = 0) -> Part:
        """What has come of an item that succeeded."""
        return Part(Some(value), (), 1, key, key, key, retry)

    @staticmethod
    def of_dead_letter(letter: DeadLetter[Any]) -> Part:
        """What has come of an item that failed."""
        return Part(Nothing, (letter,), 1, letter.key, letter.key, letter.key)

    @staticmethod
    def of_group(parts: Sequence[Part]) -> Part:
        """What has come of all the items of these parts, with no value yet."""
        return Part(
            value=Nothing,
            dead_letters=tuple(letter for part in parts for letter in part.dead_letters),
            count=sum(part.count for part in parts),
            first=parts[0].first,
            last=parts[-1].last,
            digest=digest_of([part.digest for part in parts]),
            retry=max(part.retry for part in parts),
            is_reduced=True,
        )

    @property
    def arguments(self) -> Arguments:
        """Which items these are: a resume must find the same ones here."""
        return Arguments(self.digest, f"({self.count} items, {self.first!r} to {self.last!r})")
