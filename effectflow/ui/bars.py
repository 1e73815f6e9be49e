"""The bars of a page: where they are on a scale of time, and what becomes of too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from effectflow.checkpoint.schema import frozen
from effectflow.observe.operations import Operation
from effectflow.observe.timeline import Bar, BarKind
from effectflow.ui.formatting import took
from effectflow.ui.time_window import TimeWindow

_MOST_CHARACTERS = 500_000
"""The characters of the bars of a page, about; what is too close together becomes one bar."""

_LEAST_WIDTH = 0.25
"""The width of a bar that took almost no time, in percent."""

_MOST_SLOTS = int(100 / _LEAST_WIDTH)
"""A row with more bars next to each other would show them on top of each other."""

KINDS: tuple[BarKind, ...] = (
    "failed",
    "interrupted",
    "retrying",
    "running",
    "waiting",
    "paused",
    "queued",
    "cancelled",
    "left",
    "driven",
    "completed",
)
"""The kinds of bars. Of several that become one, the first of these counts."""

_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """A bar: its place and its width in percent, and what it tells.

    Attributes:
        lasts: whether what it shows has not ended.
        path: the step that it is about; "" for the run.
    """

    left: float
    width: float
    kind: BarKind
    title: str
    lasts: bool = False
    path: str = ""


def drawn_bars(
    rows: Iterable[Iterable[tuple[Bar, Operation | None]]], window: TimeWindow
) -> list[tuple[DrawnBar, ...]]:
    """Return the bars of each row that are in a window. Pure.

    Parameters:
        rows: the bars with the operations that they are about; None for those of the run.
    """
    placed = [_placed(row, window) for row in rows]
    slots = _slots_for(placed)
    return [_drawn(row, slots, window) for row in placed]


@frozen
class _PlacedBar:
    left: float
    right: float
    bar: Bar
    operation: Operation | None


def _placed(bars: Iterable[tuple[Bar, Operation | None]], window: TimeWindow) -> list[_PlacedBar]:
    """Return those bars that are in a window, cut to it."""
    found: list[_PlacedBar] = []
    # As `window.percent`: a row may have 100,000 bars.
    began, scale = window.began, 100 / (window.ended - window.began)
    for bar, one in bars:
        left = (bar.began - began) * scale
        right = 100.0 if bar.ended is None else (bar.ended - began) * scale
        if right >= 0.0 and left <= 100.0:
            found.append(_PlacedBar(max(left, 0.0), min(right, 100.0), bar, one))
    return found


def _slots_for(rows: Sequence[Sequence[_PlacedBar]]) -> int | None:
    """Return in how many parts of a row bars that begin there become one; None if there are few."""
    count = sum(map(len, rows))
    names = sum(
        len(one.operation.path) for one in chain.from_iterable(rows) if one.operation is not None
    )
    # A page has the path of a bar in a link and two labels.
    characters = 200 * count + 3 * names
    if characters <= _MOST_CHARACTERS:
        return None
    return max(min(count * _MOST_CHARACTERS // characters // len(rows), _MOST_SLOTS), 12)


def _drawn(
    bars: Sequence[_PlacedBar], slots: int | None, window: TimeWindow
) -> tuple[DrawnBar, ...]:
    if slots is None:
        return tuple(_bar(one.left, one.right, one, _told(one, window)) for one in bars)
    groups: dict[int, list[_PlacedBar]] = {}
    for one in bars:
        groups.setdefault(int(one.left * slots / 100), []).append(one)
    return tuple(_merged(group, window) for group in groups.values())


def _merged(group: Sequence[_PlacedBar], window: TimeWindow) -> DrawnBar:
    left, right = min(one.left for one in group), max(one.right for one in group)
    first = min(group, key=lambda one: _RANKS[one.bar.kind])
    told = _told(first, window)
    title = told if len(group) == 1 else f"{len(group)} bars, such as {told}"
    return _bar(left, right, first, title)


def _bar(left: float, right: float, one: _PlacedBar, title: str) -> DrawnBar:
    width = max(right - left, _LEAST_WIDTH)
    path = "" if one.operation is None else one.operation.path
    lasts = one.bar.ended is None
    return DrawnBar(
        round(min(left, 100 - width), 3), round(width, 3), one.bar.kind, title, lasts, path
    )


def _told(one: _PlacedBar, window: TimeWindow) -> str:
    bar = one.bar
    ended = ", not ended" if bar.ended is None else f", {took(bar.ended - bar.began)}"
    name = "" if one.operation is None else f"{one.operation.path}: "
    return f"{name}{bar.kind} after {took(bar.began - window.first)}{ended}"
