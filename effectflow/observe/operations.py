"""What a run did and does: its steps, waits and spawned runs, with their attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from effectflow.checkpoint.entries import (
    BEGINNINGS,
    BeforeStep,
    ChildEnded,
    ChildStarted,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Resumed,
    Signalled,
    TimerFired,
    Waiting,
)
from effectflow.checkpoint.errors import OutcomeUnknown
from effectflow.checkpoint.order import Spans, ordered_path_of, read_order
from effectflow.checkpoint.schema import frozen
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.paths import StepPath, steps_around

State: TypeAlias = Literal[
    "running", "waiting", "retrying", "interrupted", "completed", "failed", "cancelled", "left"
]
"""Where an operation is, or how it ended.

An operation is `retrying` between two attempts, `interrupted` if its process was stopped or died and a
resume continues it, and `left` if the run went on without its end, such as the wait of a branch that
lost a race.
"""

OPEN: frozenset[State] = frozenset(("running", "waiting", "retrying", "interrupted"))
"""The states of an operation that has not ended."""


@frozen
class Attempt:
    """An attempt of an operation. Times are in seconds since the epoch; no `ended` while it lasts."""

    began: float
    ended: float | None = None
    state: State = "running"
    error: ErrorRecord | None = None


@frozen
class Operation:
    """A step, a wait, or the start of another run.

    Attributes:
        path: its path in the run.
        kind: what it is: "step", "wait", or "run" for the start of another run.
        attempts: its attempts, oldest first; a wait has one, unless it began anew.
        state: its state now. That of a step in progress is `running` even if its process has died.
        what: what a wait is for, such as "signal approval", or the run that was started.
        child: the id of the run that a wait is for, or that was started; "" for others.
        until: when a wait or the pause before the next attempt ends by itself, in seconds since the
            epoch; None without such a time.
        is_unknown: whether it is an at-most-once step that has begun, and whose outcome is unknown.
    """

    path: str
    kind: Literal["step", "wait", "run"]
    attempts: tuple[Attempt, ...]
    state: State
    what: str = ""
    child: str = ""
    until: float | None = None
    is_unknown: bool = False

    @property
    def began(self) -> float:
        """When its first attempt began, in seconds since the epoch."""
        return self.attempts[0].began

    @property
    def newest(self) -> Attempt:
        """Its newest attempt."""
        return self.attempts[-1]

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN


def operations_of(entries: Sequence[Entry]) -> list[Operation]:
    """Return the operations of a run, in the order in which they first began.

    Example:
        >>> begun = BeforeStep("charge", at=5.0, attempt=1)
        >>> [charge] = operations_of([begun, Completed("charge", "paid", 2.0, at=7.0)])
        >>> charge.state, charge.newest.ended
        ('completed', 7.0)
    """
    return OperationReader(entries).operations()


class _Growing:
    """An operation while its entries are read, with its newest attempt and those before it."""

    # Defaults of the class: most operations have these, and to set all of them takes long.
    state: State = "running"
    ended: float | None = None
    how: State = "running"
    error: ErrorRecord | None = None
    earlier: list[Attempt] | None = None
    what = ""
    child = ""
    until: float | None = None
    is_at_most_once = False

    def __init__(self, kind: Literal["step", "wait", "run"], began: float) -> None:
        self.kind: Literal["step", "wait", "run"] = kind
        self.began = began
        if kind == "wait":
            self.state = self.how = "waiting"

    @property
    def newest(self) -> Attempt:
        """Its newest attempt."""
        return Attempt(self.began, self.ended, self.how, self.error)

    @property
    def can_end(self) -> bool:
        """Whether its newest attempt has not ended, or a resume may go on inside it."""
        return self.ended is None or self.state == "interrupted"

    def go_on(self) -> None:
        """Note that a resume went on inside an attempt that was interrupted."""
        if self.state == "interrupted":
            self.state, self.ended, self.how, self.error = "running", None, "running", None

    def begin(self, at: float, before: float) -> None:
        """Begin another attempt. `before` is when the life before ended, perhaps by a crash."""
        if self.ended is None:
            self.end(max(before, self.began), "interrupted")
        if self.earlier is None:
            self.earlier = []
        self.earlier.append(self.newest)
        self.state = self.how = "waiting" if self.kind == "wait" else "running"
        self.began, self.ended, self.error = at, None, None

    def end(self, at: float, state: State, error: ErrorRecord | None = None) -> None:
        """End the newest attempt."""
        self.state, self.until = state, None
        self.ended, self.error = at, error
        self.how = "failed" if state == "retrying" else state


class OperationReader:
    """Finds the operations of a run, and can go on with later entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries: list[Entry] = []
        self._begin_anew()
        self.go_on(entries)

    def _begin_anew(self) -> None:
        self._void = Spans(())
        self._found: dict[str, _Growing] = {}
        self._life_before = self._last = 0.0
        # Without failures and resumes, all entries count, in the order in which they were written.
        self._is_straight = True

    def go_on(self, entries: Sequence[Entry]) -> None:
        """Read the entries that follow."""
        first = len(self._entries)
        self._entries += entries
        if any(isinstance(one, Resumed) and one.void for one in entries):
            # What was read before may be void.
            self._begin_anew()
            self._void = Spans(
                span for one in self._entries if isinstance(one, Resumed) for span in one.void
            )
            first = 0
        for number, entry in enumerate(islice(self._entries, first, None), first + 1):
            self._take(number, entry)

    def _take(self, number: int, entry: Entry) -> None:
        match entry:
            # First, and without patterns in it: most entries are of these.
            case BeforeStep():
                self._begin(entry.step, "step", entry.at).is_at_most_once = entry.at_most_once
            case Completed():
                self._end(number, entry, entry.step)
            case Resumed():
                self._life_before = self._last
                # The first one directly after `Started` begins a submitted run.
                self._is_straight = self._is_straight and number == 2
            case Waiting(path, until, at):
                begun = self._begin(path, "wait", at)
                begun.what, begun.child, begun.until = _wait_text(entry), entry.child, until
            case ChildStarted(path, run_id, _, _, at):
                begun = self._begin(path, "run", at)
                begun.what, begun.child = f"run {run_id!r}", run_id
                begun.end(at, "completed")
            case _:
                self._end(number, entry, ordered_path_of(entry))
        self._last = entry.at

    def _begin(self, path: str, kind: Literal["step", "wait", "run"], at: float) -> _Growing:
        known = self._found.get(path)
        if known is None or known.kind != kind:
            known = self._found[path] = _Growing(kind, at)
        else:
            known.begin(at, self._life_before)
        if "/" in path:
            for outer in steps_around(path, self._found):
                self._found[outer].go_on()
        return known

    def _end(self, number: int, entry: Entry, path: str) -> None:
        known = self._found.get(path)
        if known is None:
            if not isinstance(entry, Completed | Failed):
                return
            # A migration has renamed the step since it began.
            known = self._begin(path, "step", entry.at)
        is_void = bool(self._void) and number in self._void
        if not known.can_end:
            if isinstance(entry, (Completed, Failed)) and not is_void:
                # Someone has given the outcome of a step whose attempt was over.
                known.begin(entry.at, self._life_before)
            elif not isinstance(entry, ChildEnded):
                return
        match entry:
            case Completed() | TimerFired() | Signalled():
                known.end(entry.at, "completed")
            case Failed(error=error, at=at, retry_at=retry_at):
                self._is_straight = False
                known.end(at, "failed" if retry_at is None else "retrying", error)
                known.until = retry_at
            case Interrupted(at=at, cancelled=cancelled, in_progress=in_progress):
                if in_progress or cancelled:
                    known.end(at, "cancelled" if cancelled else "interrupted")
            case ChildEnded(at=at, status=status, error=error):
                ends: dict[str, State] = {"completed": "completed", "failed": "failed"}
                known.end(at, ends.get(status, "cancelled"), error)
            case _:
                return
        if is_void:
            known.state = "retrying" if known.kind == "step" else "left"

    def operations(self) -> list[Operation]:
        """Return the operations after the entries so far."""
        has_ended = bool(self._entries) and isinstance(self._entries[-1], Finished)
        # Only what is open has to be compared with others.
        begun = [path for path, one in self._found.items() if one.state in OPEN]
        latest: dict[str, str] = {}
        if begun:
            entries = self._entries if self._is_straight else read_order(self._entries).entries
            latest = _latest_places(entries, begun)
        closed = self._found.keys() - begun if begun else set[str]()
        operations: list[Operation] = []
        for path, one in self._found.items():
            state = one.state
            if state in OPEN:
                was_left = any(steps_around(path, closed)) or any(
                    latest.get(flow, place) != place for flow, place in _places(path)
                )
                if was_left or (has_ended and one.kind == "wait"):
                    state = "left"
                elif has_ended and state == "running":
                    state = "interrupted"
            operations.append(
                Operation(
                    path,
                    one.kind,
                    (one.newest,) if one.earlier is None else (*one.earlier, one.newest),
                    state,
                    one.what,
                    one.child,
                    one.until if state in OPEN else None,
                    state != "completed" and _is_unknown(one, state),
                )
            )
        return operations


_UNKNOWN = name_of_error(OutcomeUnknown)


def _is_unknown(one: _Growing, state: State) -> bool:
    if state == "failed":
        error = one.error
        return error is not None and error.type == _UNKNOWN
    return one.is_at_most_once and state in ("running", "interrupted")


def _latest_places(entries: Sequence[Entry], paths: Iterable[str]) -> dict[str, str]:
    """Return for each sequential flow around operations the step or operator that it has begun last.

    Parameters:
        entries: those that count, in their order.
        paths: the operations.
    """
    flows = {flow for path in paths for flow, _ in _places(path)}
    latest: dict[str, str] = {}
    for entry in reversed(entries):
        # A step that a migration has renamed may only end under its present name.
        if isinstance(entry, (BEGINNINGS, Completed, Failed)):
            for flow, place in _places(ordered_path_of(entry)):
                if flow in flows:
                    latest.setdefault(flow, place)
            if len(latest) == len(flows):
                break
    return latest


def _places(path: str) -> Iterator[tuple[str, str]]:
    """Yield each flow around an operation, with the place in it: a step or an operator."""
    at = StepPath(path)
    while at:
        yield at.flow, at.operator
        at = at.flow


def _wait_text(wait: Waiting) -> str:
    if wait.topic:
        return wait.topic.replace(":", " ", 1)
    return f"run {wait.child!r}" if wait.child else "a time"
