"""The steps of a run beside the time that they took: rows of a table, each with bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from effectflow.effects.paths import flow_of
from effectflow.observe.operations import Operation
from effectflow.observe.recorded_run import RecordedRun
from effectflow.observe.step_nodes import StepNode
from effectflow.observe.timeline import Bar, BarKind, bars_of, lives_of
from effectflow.ui.bars import KINDS, DrawnBar, drawn_bars
from effectflow.ui.time_window import TimeWindow, rounded_up

ROWS = 150
"""The rows of a page."""


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
    drawn = drawn_bars(
        [[(bar, None) for bar in lives], *(_bars_in(one, is_held=is_held) for one in page)], window
    )
    whole, *rows = (
        _row(one, bars, is_held=is_held) for one, bars in zip((_RUN, *page), drawn, strict=True)
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


def _bars_in(found: _Found, *, is_held: bool) -> Iterator[tuple[Bar, Operation | None]]:
    _, _, _, operation, inside = found
    for one in inside if operation is None else (operation,):
        for bar in bars_of(one, is_held=is_held):
            # While it lasted, nothing was done.
            is_wait = one.kind == "wait" and bar.kind == "completed"
            yield (replace(bar, kind="waiting") if is_wait else bar), one
