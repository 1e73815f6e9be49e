"""The steps of a run beside the time that they took: rows of a table, each with bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from effectflow.checkpoint.schema import frozen
from effectflow.effects.paths import flow_of
from effectflow.observe.operations import Operation
from effectflow.observe.recorded_run import RecordedRun
from effectflow.observe.step_tree import StepNode
from effectflow.observe.timeline import Bar, BarKind, bars_of, lives_of
from effectflow.ui.formatting import took
from effectflow.ui.time_window import TimeWindow, rounded_up

ROWS = 150
"""The rows of a page."""

_MOST_CHARACTERS = 500_000
"""The characters of the bars of a page, about; what is too close together becomes one bar."""

_LEAST_WIDTH = 0.25
"""The width of a bar that took almost no time, in percent."""

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


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the run, a step or a wait, or a branch or a flow with several of them.

    Attributes:
        label: what it adds to the row around it.
        path: its path; "" for the run.
        depth: how many rows it is in.
        operation: the step or the wait; None for others.
        state: its state, in words.
        count: how many steps and waits a flow has.
    """

    label: str
    path: str
    depth: int
    operation: Operation | None
    state: str
    bars: tuple[DrawnBar, ...]
    count: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """What of the steps of a run a reader wants to see.

    Attributes:
        by: "steps" for a row for each step, "flows" for a row for each sequential flow; "" chooses.
        show: "open", "failed" or "again" for only such steps; "" for all.
        find: only steps with this text in their paths.
        step: the path of the chosen step; "" without one.
        first: the number of the first row of the page, from 0; None for the page of the chosen step.
        began, ended: the part of the time, in seconds since the epoch; None for where the run does.
    """

    by: str = ""
    show: str = ""
    find: str = ""
    step: str = ""
    first: int | None = None
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """A page of the rows of a run.

    Attributes:
        window: the part of the time that the bars show.
        run: the row of the run itself.
        rows: those of the page.
        first, total: the number of the first of them, from 0, and how many there are.
        kinds: the kinds of bars on the page.
        counts: how many steps and waits there are in each state.
        by: "steps" or "flows".
    """

    window: TimeWindow
    run: Row
    rows: tuple[Row, ...]
    first: int
    total: int
    kinds: tuple[BarKind, ...]
    counts: Mapping[str, int]
    by: str


SHOWN: Mapping[str, Callable[[Operation], bool]] = {
    "open": lambda one: one.is_open,
    "failed": lambda one: one.state == "failed",
    "again": lambda one: len(one.attempts) > 1,
}
"""Which steps each choice of `View.show` shows."""

_Found: TypeAlias = tuple[int, str, str, Operation | None, Sequence[Operation]]
"""A row before its bars are drawn: depth, label, path, operation; for a flow, its operations."""

_RUN: _Found = (0, "", "", None, ())


def steps_of(run: RecordedRun, view: View, now: float) -> Steps:
    """Return the rows of a run that a reader wants to see. Pure.

    Parameters:
        now: the time, in seconds since the epoch.
    """
    is_held = run.info.is_held(now)
    lives = tuple(lives_of(run.entries, is_held=is_held))
    window = _window_of(run, view, lives, now)
    by = view.by or ("flows" if not view.step and _are_long_flows(run.operations) else "steps")
    found = _found(run, view, by, window)
    first = _first_row(found, view)
    page = found[first : first + ROWS]
    placed = [
        _placed(((bar, None) for bar in lives), window),
        *(_placed(_bars_in(one, is_held=is_held), window) for one in page),
    ]
    slots = _slots_for(placed)
    whole, *rows = (
        _row(one, _drawn(bars, slots, window), is_held=is_held)
        for one, bars in zip((_RUN, *page), placed, strict=True)
    )
    used = {bar.kind for row in (whole, *rows) for bar in row.bars}
    counts = {name: sum(map(is_shown, run.operations)) for name, is_shown in SHOWN.items()}
    kinds: tuple[BarKind, ...] = tuple(kind for kind in KINDS if kind in used)
    return Steps(window, whole, tuple(rows), first, len(found), kinds, counts, by)


def _are_long_flows(operations: Sequence[Operation]) -> bool:
    """Return whether rows for flows show much more at once than rows for steps."""
    many = len(operations)
    return many > ROWS and 4 * len({flow_of(one.path) for one in operations}) < many


def _window_of(run: RecordedRun, view: View, lives: Sequence[Bar], now: float) -> TimeWindow:
    # The clock of the process may have been set back.
    times = [one.at for one in run.entries]
    first, last = min(times), max(times)
    if lives and lives[-1].ended is None:
        last = first + rounded_up(max(now, last) - first)
    return TimeWindow.over(first, last, view.began, view.ended)


def _found(run: RecordedRun, view: View, by: str, window: TimeWindow) -> list[_Found]:
    is_shown = SHOWN.get(view.show)
    if by == "flows":
        flows: dict[str, list[Operation]] = {}
        for one in _chosen(run.operations, view, window):
            flows.setdefault(flow_of(one.path), []).append(one)
        return [(0, path or "main flow", path, None, inside) for path, inside in flows.items()]
    if view.find or is_shown is not None:
        chosen = _chosen(run.operations, view, window)
        return [(0, one.path, one.path, one, ()) for one in chosen]
    return [*_within(run.tree, 0, window)]


def _chosen(operations: Iterable[Operation], view: View, window: TimeWindow) -> Iterator[Operation]:
    is_shown, sought = SHOWN.get(view.show), view.find.casefold()
    for one in operations:
        if sought and sought not in one.path.casefold():
            continue
        if _is_in(window, one) and (is_shown is None or is_shown(one)):
            yield one


def _within(nodes: Sequence[StepNode], depth: int, window: TimeWindow) -> Iterator[_Found]:
    """Yield the rows of a tree that are in a window, each with the rows around it."""
    for node in nodes:
        inside = _within(node.inside, depth + 1, window) if node.inside else iter(())
        if node.operation is None or not _is_in(window, node.operation):
            inner = next(inside, None)
            if inner is None:
                continue
            inside = chain((inner,), inside)
        yield depth, node.label, node.path, node.operation, ()
        yield from inside


def _is_in(window: TimeWindow, one: Operation) -> bool:
    if window.is_whole:
        return True
    ended = one.newest.ended
    return one.began <= window.ended and (one.is_open or ended is None or ended >= window.began)


def _first_row(found: Sequence[_Found], view: View) -> int:
    if view.first is not None:
        return min(view.first, max(len(found) - 1, 0)) // ROWS * ROWS
    flow = flow_of(view.step)
    for number, (_, _, path, operation, _) in enumerate(found):
        if view.step and path == (flow if operation is None else view.step):
            return number // ROWS * ROWS
    return 0


def _row(found: _Found, bars: tuple[DrawnBar, ...], *, is_held: bool) -> Row:
    depth, label, path, operation, inside = found
    state = "" if operation is None else shown_state(operation, is_held=is_held)
    return Row(label, path, depth, operation, state, bars, len(inside))


def shown_state(operation: Operation, *, is_held: bool) -> str:
    """Return the state of an operation: nothing runs in a run that no live process has."""
    is_running = operation.state == "running"
    return "interrupted" if is_running and not is_held else operation.state


@frozen
class _PlacedBar:
    left: float
    right: float
    bar: Bar
    operation: Operation | None


def _bars_in(found: _Found, *, is_held: bool) -> Iterator[tuple[Bar, Operation | None]]:
    _, _, _, operation, inside = found
    for one in inside if operation is None else (operation,):
        for bar in bars_of(one, is_held=is_held):
            # While it lasted, nothing was done.
            is_wait = one.kind == "wait" and bar.kind == "completed"
            yield (replace(bar, kind="waiting") if is_wait else bar), one


def _placed(bars: Iterable[tuple[Bar, Operation | None]], window: TimeWindow) -> list[_PlacedBar]:
    """Return those bars that are in a window, cut to it."""
    found: list[_PlacedBar] = []
    for bar, one in bars:
        left = window.percent(bar.began)
        right = 100.0 if bar.ended is None else window.percent(bar.ended)
        if right >= 0 and left <= 100:
            found.append(_PlacedBar(max(left, 0.0), min(right, 100.0), bar, one))
    return found


def _slots_for(rows: Sequence[Sequence[_PlacedBar]]) -> int | None:
    """Return in how many parts of a row bars that begin there become one; None if there are few."""
    count = sum(map(len, rows))
    characters = sum(map(_characters_of, chain.from_iterable(rows)))
    if characters <= _MOST_CHARACTERS:
        return None
    return max(count * _MOST_CHARACTERS // characters // len(rows), 12)


def _characters_of(one: _PlacedBar) -> int:
    """Return about how many characters a page has for a bar, with its path in a link and two labels."""
    return 200 + (0 if one.operation is None else 3 * len(one.operation.path))


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
