"""When everything in a run happened: bars for its lives, attempts and waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    Entry,
    Finished,
    Paused,
    Resumed,
    Suspended,
)
from effectflow.checkpoint.schema import frozen
from effectflow.observe.operations import Operation, State, operations_of
from effectflow.observe.step_nodes import StepNode, step_tree

BarKind: TypeAlias = State | Literal["queued", "driven", "paused"]
"""What a bar shows: how an attempt or a wait ended, or where it is.

The lane of the run has other bars: `queued` until a worker first took it, `driven` while a process had
it, `waiting` while it was suspended, `paused`, and `interrupted` until someone continued it.
"""


@frozen
class Bar:
    """Something that took time. `began` and `ended` are in seconds since the epoch; None if it lasts."""

    kind: BarKind
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of a timeline: the run, an operation of it, or a branch with several operations.

    Attributes:
        label: its name: the last part of its path; "" for the run.
        depth: how many lanes it is in; 0 for the run.
        bars: its bars, oldest first.
    """

    label: str
    depth: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything in a run happened. `began` and `ended` are those of the whole picture."""

    began: float
    ended: float
    lanes: tuple[Lane, ...]


def timeline_of(entries: Sequence[Entry], now: float, *, is_held: bool = False) -> Timeline:
    """Return the timeline of a run.

    Parameters:
        entries: its entries, from the first one on.
        now: the time, in seconds since the epoch, at which what lasts is shown to end.
        is_held: whether a live process has the run, so that its newest life lasts.
    """
    run = Lane("", 0, tuple(lives_of(entries, is_held=is_held)))
    tree = step_tree(operations_of(entries))
    lanes = (run, *_lanes(tree, 1, is_held=is_held))
    lasts = any(bar.ended is None for lane in lanes for bar in lane.bars)
    # The clock of the process may have been set back.
    times = [one.at for one in entries]
    ended = max(times)
    return Timeline(min(times), max(ended, now) if lasts else ended, lanes)


def lives_of(entries: Sequence[Entry], *, is_held: bool) -> Iterator[Bar]:
    """Yield the bars of the run itself: when it was queued, driven and waiting."""
    is_submitted = len(entries) == 1 or isinstance(entries[1], Resumed)
    current: Bar | None = Bar("queued" if is_submitted else "driven", entries[0].at, None)
    for before, entry in pairwise(entries):
        match entry:
            # First, because most entries are of these.
            case BeforeStep() | Completed():
                pass
            case Resumed(at=at):
                last = before.at
                if current is not None and current.kind == "driven":
                    yield replace(current, ended=last)
                    current = Bar("interrupted", last, None)
                if current is not None:
                    yield replace(current, ended=at)
                current = Bar("driven", at, None)
            case Suspended(at=at) | Paused(at=at) | Finished(at=at):
                if current is not None:
                    yield replace(current, ended=at)
                kind: BarKind = "waiting" if isinstance(entry, Suspended) else "paused"
                current = None if isinstance(entry, Finished) else Bar(kind, at, None)
            case _:
                pass
    last = entries[-1].at
    if current is not None and current.kind == "driven" and not is_held:
        yield replace(current, ended=last)
        current = Bar("interrupted", last, None)
    if current is not None:
        yield current


def _lanes(nodes: Sequence[StepNode], depth: int, *, is_held: bool) -> Iterator[Lane]:
    for node in nodes:
        bars = () if node.operation is None else bars_of(node.operation, is_held=is_held)
        yield Lane(node.label, depth, tuple(bars))
        yield from _lanes(node.inside, depth + 1, is_held=is_held)


def bars_of(operation: Operation, *, is_held: bool) -> Iterator[Bar]:
    """Yield a bar for each attempt, and for the pauses between attempts that failed and the next."""
    attempts = operation.attempts
    if len(attempts) == 1 and operation.state == "completed":
        # Most operations are like this one.
        yield Bar("completed", operation.began, operation.newest.ended)
        return
    for number, attempt in enumerate(attempts):
        is_newest = number == len(attempts) - 1
        state = attempt.state
        if is_newest and attempt.ended is None:
            state = operation.state
            if state == "running" and not is_held:
                state = "interrupted"
        ended = attempt.began if state == "left" and attempt.ended is None else attempt.ended
        yield Bar(state, attempt.began, ended)
        if attempt.ended is None:
            continue
        if not is_newest:
            gap: BarKind = "retrying" if attempt.state == "failed" else "interrupted"
            yield Bar(gap, attempt.ended, attempts[number + 1].began)
        elif operation.state == "retrying":
            yield Bar("retrying", attempt.ended, None)
