"""What a machine has been through: a history that grows at constant cost, and never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

__all__ = ["History", "HistoryEntry"]

S = TypeVar("S", covariant=True)

_SHOWN = 20
"""Entries that are shown of a history: a long one is not for reading on one line."""


# A named tuple, since one is made at each step, and a frozen dataclass takes four times as long.
class HistoryEntry(NamedTuple, Generic[S]):
    """One transition that was taken.

    Attributes:
        transition: its name.
        source: the state that the machine left.
        target: the state that it came to.
        at: when, aware, in UTC.
        attempt: the attempt that ended in this, from 1.
        abort_reason: why the action aborted; None if it succeeded.
    """

    transition: str
    source: S
    target: S
    at: datetime
    attempt: int
    abort_reason: str | None = None


class History(Sequence[HistoryEntry[S]]):
    """The transitions that were taken, oldest first. Immutable: `appended` gives a longer one.

    Each history refers to the one that it continues, so that a long one is never copied: a plain tuple
    would cost a machine of n steps the square of n.
    """

    __slots__ = ("_before", "_entries", "_last", "_length")

    _before: History[S] | None
    _last: HistoryEntry[S] | None

    def __init__(self, entries: Iterable[HistoryEntry[S]] = ()) -> None:
        self._entries: tuple[HistoryEntry[S], ...] | None = tuple(entries)
        self._length = len(self._entries)
        self._before = None
        self._last = self._entries[-1] if self._entries else None

    def appended(self: History[Any], entry: HistoryEntry[Any]) -> History[Any]:
        """This history and one more entry."""
        longer = cast("History[Any]", History.__new__(History))
        longer._before, longer._last = self, entry
        longer._length = self._length + 1
        longer._entries = None
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> HistoryEntry[S]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HistoryEntry[S]]: ...
    def __getitem__(self, index: int | slice) -> HistoryEntry[S] | Sequence[HistoryEntry[S]]:
        if index == -1 and self._last is not None:
            return self._last
        return self._all()[index]

    def __iter__(self) -> Iterator[HistoryEntry[S]]:
        return iter(self._all())

    def _all(self) -> tuple[HistoryEntry[S], ...]:
        if self._entries is None:
            self._entries = self._collected()
            # What came before is in the entries now, and need not be kept twice.
            self._before = None
        return self._entries

    def _collected(self) -> tuple[HistoryEntry[S], ...]:
        newest: list[HistoryEntry[S]] = []
        link: History[S] | None = self
        oldest: tuple[HistoryEntry[S], ...] | None = None
        while link is not None:
            # In this order, as another thread may be collecting the same link.
            before, oldest = link._before, link._entries
            if oldest is not None:
                break
            assert link._last is not None
            newest.append(link._last)
            link = before
        newest.reverse()
        return (*(oldest or ()), *newest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return f"History({list(self)!r})"
        return f"History(<{len(self) - _SHOWN:,} earlier>, {list(self)[-_SHOWN:]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Not link by link, which for a long history would be too deep a recursion.
        return History, (self._all(),)
