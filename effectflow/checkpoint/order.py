"""The order of a run: what a resume takes from its journal, one entry after another.

`read_order` is a pure pass over the entries. It leaves out what is void, and everything within a step
that has ended, and puts the rest in the order of its turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, get_args

from effectflow.checkpoint.entries import (
    BeforeStep,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Interrupted,
    Ordered,
    Ranges,
    Resumed,
    SetAside,
    Signalled,
    Value,
)
from effectflow.checkpoint.errors import OutcomeUnknown
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.paths import is_within, steps_around

E = TypeVar("E", bound=Ordered)

Kind: TypeAlias = type[E] | tuple[type[E], ...]
"""The class of an entry that a replay expects, or several."""


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failed attempt of a step. `began` and `ended` are in seconds since the epoch."""

    error: ErrorRecord
    began: float
    ended: float


@dataclass(slots=True)
class Attempts:
    """The attempts of a step that did not simply succeed.

    Attributes:
        spent: the number of attempts that do not count for the retry policy of the step: they were
            stopped from outside, or the run ended and was resumed after them.
        cut_off: whether a stop has cut off the newest attempt, which a resume may continue.
        since: when the first attempt that counts began, in seconds since the epoch; None if none counts.
        failures: all failed attempts, oldest first. Defects are not among them.
    """

    spent: int = 0
    cut_off: bool = False
    since: float | None = None
    failures: list[RecordedFailure] = field(default_factory=lambda: [])

    def begin_another(self) -> None:
        """Note that an attempt begins, so that one that was cut off before does not continue."""
        if self.cut_off:
            self.spent += 1
            self.cut_off = False


@dataclass(frozen=True, slots=True)
class Aside:
    """Something that was set aside.

    Attributes:
        number: the number of the entry.
        value: what was set aside.
        is_dropped: whether it counts no longer.
    """

    number: int
    value: Tree
    is_dropped: bool


class Order:
    """What a replay takes from a journal.

    Attributes:
        entries: the entries to take, in order.
        numbers: their numbers in the journal.
        places: for each path, the positions in `entries` of its operation, the next one last.
        values: the values that were computed once, and the numbers of their entries, by path.
        begun: the newest beginning of each step, by path.
        attempts: what is known of the attempts of steps that did not simply succeed, by path.
        open: the steps that have begun and not ended, whether that counts or not.
        results: the ends of steps that changed code has left behind, by path.
        abandoned: the numbers of the entries that changed code did not reach in this life.
        set_aside: what was set aside, by path.
        reopenings: how often something that was set aside was tried again or dropped.
        retried: for what is tried again, the number of the reopening, by path.
        spawned: the ids of the runs that are cancelled with this one, by the entries that began them.
        received: the messages that each step has received, itself or a step within it.
        returned: those that the next attempt of a step receives again.
        messages: the topics and keys of all messages that the run has received.
        children: the ids of the runs that were spawned at a path, by the digest of their input.
        is_cancelled: whether the cancellation of the run was requested.
        last_turn: the last turn in the journal.
    """

    __slots__ = (
        "abandoned",
        "attempts",
        "begun",
        "children",
        "entries",
        "is_cancelled",
        "last_turn",
        "messages",
        "numbers",
        "open",
        "places",
        "received",
        "reopenings",
        "results",
        "retried",
        "returned",
        "set_aside",
        "spawned",
        "values",
    )

    def __init__(self) -> None:
        self.entries: list[Ordered] = []
        self.numbers: list[int] = []
        self.places: dict[str, list[int]] = {}
        self.values: dict[str, tuple[int, Any]] = {}
        self.begun: dict[str, BeforeStep] = {}
        self.attempts: dict[str, Attempts] = {}
        self.open: dict[str, None] = {}
        self.results: dict[str, Completed | Failed | None] = {}
        self.abandoned: list[int] = []
        self.set_aside: dict[str, Aside] = {}
        self.reopenings = 0
        self.retried: dict[str, int] = {}
        self.spawned: dict[int, str] = {}
        self.received: dict[str, list[Signalled]] = {}
        self.returned: dict[str, list[Signalled]] = {}
        self.messages: dict[tuple[str, str], None] = {}
        self.children: dict[str, dict[str, str]] = {}
        self.is_cancelled = False
        self.last_turn = 0

    @property
    def dead_letters(self) -> int:
        """How many things that were set aside still count."""
        return sum(not one.is_dropped for one in self.set_aside.values())

    def abandon(self, number: int, entry: Entry) -> None:
        """Leave an entry out that changed code does not reach, in this life and in later ones."""
        self.abandoned.append(number)
        self.leave_behind(entry)

    def leave_behind(self, entry: Entry) -> None:
        """Keep the end of a step that changed code does not reach in its place.

        If the code reaches the step later, with the same arguments, that end stands.
        """
        if isinstance(entry, Completed | Failed):
            self.results[entry.step] = entry
        elif isinstance(entry, BeforeStep):
            self.results.setdefault(entry.step, None)

    def forget_values(self, path: str) -> None:
        """Forget the values that were computed within a step, which begins anew."""
        for known in [known for known in self.values if is_within(known, path)]:
            del self.values[known]

    def receive(self, entry: Signalled) -> None:
        """Note a message, in case the attempts around it fail."""
        for step in steps_around(entry.path, self.begun):
            self.received.setdefault(step, []).append(entry)

    def end_attempt(self, step: str, *, is_last: bool) -> None:
        """Let the next attempt of a step receive again what this one has received, if one follows."""
        received, returned = self.received.pop(step, []), self.returned.pop(step, [])
        if not is_last and (received or returned):
            self.returned[step] = received + returned

    def take_returned(self, path: str, topic: str) -> Signalled | None:
        """Take the first message about a topic that an earlier attempt has received; None without one."""
        for step in steps_around(path, self.returned):
            for entry in self.returned[step]:
                if entry.topic == topic:
                    self.returned[step].remove(entry)
                    return entry
        return None

    def had_within(self, path: str) -> bool:
        """Return whether anything was to be taken within a step."""
        return any(is_within(ordered_path_of(entry), path) for entry in self.entries)

    def has_within(self, path: str) -> bool:
        """Return whether anything is still to be taken within a step."""
        inside = f"{path}/"
        return any(places and one.startswith(inside) for one, places in self.places.items())


def read_order(entries: Sequence[Entry], void: Iterable[int] = ()) -> Order:
    """Return what a replay of a journal takes, and in which order. Pure.

    `void` are the numbers of entries to leave out, besides those that the journal says are void.
    """
    reader = _Reader(entries, void)
    for number, entry in enumerate(entries, 1):
        reader.take(number, entry)
    ordered: list[Any] = [entry for entry in entries if entry.__class__ in _ORDERED]
    reader.order.last_turn = max((entry.turn for entry in ordered), default=0)
    return reader.finish()


_OF_STEPS = frozenset((BeforeStep, Completed, Failed, Interrupted))

_ORDERED = frozenset(get_args(Ordered))


_UNKNOWN = name_of_error(OutcomeUnknown)
"""The failure of a step that was left with its outcome unknown. If it is void, the step is open again."""


class _Reader:
    """The state of the pass over the entries.

    Attributes:
        kept: the entries to take, by number.
        open: the steps that have begun, and whose end counts and has not come.
        inside: the numbers of the kept entries within each open step, and the paths of values there.
    """

    def __init__(self, entries: Sequence[Entry], void: Iterable[int]) -> None:
        self.order = Order()
        resumes = [entry for entry in entries if isinstance(entry, Resumed)]
        spans = [span for one in resumes for span in one.void]
        self.void = Spans([*spans, *((number, number) for number in void)])
        self.abandoned = Spans(span for one in resumes for span in one.abandoned)
        self.dropped = Spans(span for one in resumes for span in one.dropped)
        self.asides: dict[int, str] = {}
        self.kept: dict[int, Ordered] = {}
        self.open: set[str] = set()
        self.inside: dict[str, list[int | str]] = {}

    def take(self, number: int, entry: Any) -> None:
        order = self.order
        is_void = bool(self.void) and number in self.void
        if entry.__class__ is BeforeStep:
            self._begin_step(number, entry, is_void=is_void)
        elif entry.__class__ in _OF_STEPS:
            self._end_step(number, entry, is_void=is_void)
        elif isinstance(entry, Value):
            if not is_void:
                order.values[entry.path] = number, entry.value
                self._note_inside(entry.path, entry.path)
        elif isinstance(entry, Resumed):
            self._reopen(entry)
        elif entry.__class__ in _ORDERED:
            if isinstance(entry, SetAside):
                self.asides[number] = entry.path
            elif isinstance(entry, ChildStarted):
                order.children.setdefault(entry.path, {})[entry.input] = entry.run_id
            elif isinstance(entry, Signalled):
                order.messages[entry.topic, entry.key] = None
            if not is_void:
                self._keep_other(number, entry)

    def _reopen(self, entry: Resumed) -> None:
        """Note what is tried again of what was set aside."""
        if not self.asides:
            return
        void, dropped = Spans(entry.void), Spans(entry.dropped)
        retried = [path for number, path in self.asides.items() if number in void]
        if retried or any(number in dropped for number in self.asides):
            self.order.reopenings += 1
            for path in retried:
                self.order.retried[path] = self.order.reopenings

    def _begin_step(self, number: int, entry: BeforeStep, *, is_void: bool) -> None:
        order, path = self.order, entry.step
        known = order.attempts.get(path)
        if known is not None and known.since is None:
            known.since = entry.at
        if known is not None:
            known.begin_another()
        order.begun[path] = entry
        order.open[path] = None
        # A step that begins again is in its place already.
        if not is_void and path not in self.open:
            self.open.add(path)
            self._keep(number, path, entry)

    def _end_step(self, number: int, entry: Any, *, is_void: bool) -> None:
        order, path = self.order, entry.step
        if entry.__class__ is Interrupted and not entry.cancelled:
            if path in order.open:
                # It was stopped from outside, and continues.
                self._attempts_of(path).cut_off = True
            return
        if not (is_void and entry.__class__ is Failed and entry.error.type == _UNKNOWN):
            order.open.pop(path, None)
        if path in order.attempts:
            order.attempts[path].cut_off = False
        if order.received or order.returned:
            order.end_attempt(path, is_last=getattr(entry, "retry_at", None) is None)
        if entry.__class__ is Failed:
            # A migration may have renamed it since it began.
            known, begun = self._attempts_of(path), order.begun.get(path)
            if not entry.error.is_defect:
                began = entry.at if begun is None else begun.at
                known.failures.append(RecordedFailure(entry.error, began, entry.at))
            if is_void:
                # The run had ended with it: another budget of retries.
                known.spent, known.since = 1 if begun is None else begun.attempt, None
        if is_void:
            return
        self.open.discard(path)
        if self.inside:
            self._forget_inside(path)
        if entry.__class__ is Interrupted and path not in order.begun:
            return
        self._keep(number, path, entry)

    def _keep_other(self, number: int, entry: Any) -> None:
        order = self.order
        if entry.__class__ is CancelRequested:
            order.is_cancelled = True
            self.kept[number] = entry
            return
        path = entry.path
        if not path:
            # What a step has published: each attempt publishes again.
            return
        if entry.__class__ is Signalled:
            order.take_returned(path, entry.topic)
            order.receive(entry)
        if entry.__class__ is SetAside:
            order.set_aside[path] = Aside(number, entry.value, number in self.dropped)
        elif entry.__class__ is ChildStarted and not entry.is_detached:
            order.spawned[number] = entry.run_id
        elif entry.__class__ is ChildEnded:
            # Without a wait before it, the run was rejected, as its id belongs to another one.
            rejected = [begun for begun in order.spawned if self._is_start_of(begun, path)]
            for begun in rejected:
                del order.spawned[begun]
        self._keep(number, path, entry)

    def _is_start_of(self, number: int, path: str) -> bool:
        start = self.kept.get(number)
        return isinstance(start, ChildStarted) and start.path == path

    def _keep(self, number: int, path: str, entry: Ordered) -> None:
        if self.abandoned and number in self.abandoned:
            self.order.leave_behind(entry)
            return
        self.kept[number] = entry
        if "/" in path:
            self._note_inside(path, number)

    def _note_inside(self, path: str, what: int | str) -> None:
        for step in steps_around(path, self.open):
            self.inside.setdefault(step, []).append(what)

    def _forget_inside(self, step: str) -> None:
        for what in self.inside.pop(step, ()):
            if isinstance(what, int):
                self.kept.pop(what, None)
            else:
                self.order.values.pop(what, None)

    def _attempts_of(self, path: str) -> Attempts:
        known = self.order.attempts.get(path)
        if known is None:
            begun = self.order.begun.get(path)
            known = self.order.attempts[path] = Attempts(since=None if begun is None else begun.at)
        return known

    def finish(self) -> Order:
        order = self.order
        found = list(self.kept.items())
        if order.last_turn:
            # What was held back comes later in the journal than it happened.
            found.sort(key=_turn_of)
        order.numbers = [number for number, _ in found]
        order.entries = [entry for _, entry in found]
        places = order.places
        for position in range(len(found) - 1, -1, -1):
            entry: Any = order.entries[position]
            if entry.__class__ is not CancelRequested:
                path = entry.step if entry.__class__ in _OF_STEPS else entry.path
                if path in places:
                    places[path].append(position)
                else:
                    places[path] = [position]
        return order


def _turn_of(kept: tuple[int, Ordered]) -> int:
    return kept[1].turn


def ordered_path_of(entry: Entry) -> str:
    """Return the path of an entry that a replay takes; empty for others."""
    # As in `Order`: `isinstance` with a union takes several times as long.
    ordered: Any = entry
    return path_of(ordered) if entry.__class__ in _ORDERED else ""


def path_of(entry: Ordered) -> str:
    """Return the path of the operation that an entry belongs to; empty for that of the whole run."""
    found: Any = entry
    if entry.__class__ in _OF_STEPS:
        return found.step or ""
    return "" if entry.__class__ is CancelRequested else found.path


class Spans:
    """A set of sequence numbers, given as ranges."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]


def in_ranges(numbers: Iterable[int]) -> Ranges:
    """Return sequence numbers as ranges.

    Example:
        >>> in_ranges([3, 9, 4])
        ((3, 4), (9, 9))
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)
