"""Failures on their way through a run, and what a resume tries again.

Each fiber carries the failures that its present state comes from. As soon as anything durable begins
because of one (a handler, a finalizer, an undo begins a step), it stands. What a failed run has left at
its end is left out by its resume, which so tries it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.errors import NotSerializable
from effectflow.effects.paths import is_within


class Held:
    """An entry that is held back: within a step that has begun nothing, or before what it may lead to.

    Attributes:
        entry: the entry.
        number: its number in the journal, once it is written; None before.
        place: the order in which entries were held back.
    """

    __slots__ = ("entry", "number", "place")

    def __init__(self, entry: Entry, place: int) -> None:
        self.entry = entry
        self.number: int | None = None
        self.place = place


class Cause:
    """A failure on its way.

    Attributes:
        entries: the entries that are void if it is tried again, with their paths: those that it comes
            from, and what followed from it.
        origins: those that it comes from; empty if it comes from code alone.
        stands: whether something has begun because of it, so that it is not tried again.
        error: the error of that step; None if no step did.
        unreadable: why a resume could not rebuild its error; None if it can.
        step: the path of the step that failed; empty if no step did.
        is_retryable: whether a resume tries it again if it does not stand.
    """

    __slots__ = ("entries", "error", "is_retryable", "origins", "stands", "step", "unreadable")

    def __init__(
        self,
        *entries: tuple[str, int | Held],
        step: str = "",
        error: object = None,
        unreadable: NotSerializable | None = None,
        is_retryable: bool = True,
    ) -> None:
        self.entries: list[tuple[str, int | Held]] = [*entries]
        self.origins = entries
        self.error = error
        self.is_retryable = is_retryable
        self.stands = False
        self.step = step
        self.unreadable = unreadable

    def is_older_than(self, number: int) -> bool:
        """Return whether it comes from an entry up to this number."""
        known = (one.number if isinstance(one, Held) else one for _, one in self.origins)
        return any(one is not None and one <= number for one in known)

    def follow(self, path: str, entry: int | Held) -> None:
        """Note that an entry followed from the failure."""
        if not self.stands:
            self.entries.append((path, entry))

    def stand(self) -> None:
        """Let the failure stand."""
        self.stands = True
        self.entries.clear()


def void_with(causes: Iterable[Cause], within: str = "") -> list[int]:
    """Return the numbers of the entries, within a step if one is given, that are void with failures."""
    numbers: list[int] = []
    for cause in causes:
        if not cause.is_retryable:
            continue
        for path, entry in cause.entries:
            number = entry.number if isinstance(entry, Held) else entry
            if number is not None and (not within or is_within(path, within)):
                numbers.append(number)
    return numbers
