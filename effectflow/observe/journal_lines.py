"""A journal as people read it: a line of text for each entry. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from effectflow.checkpoint.entries import (
    BeforeStep,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Entry,
    Failed,
    Finished,
    Interrupted,
    Local,
    Paused,
    Published,
    Resumed,
    SetAside,
    Signalled,
    Started,
    Suspended,
    TimerFired,
    Value,
    Waiting,
)
from effectflow.checkpoint.errors import process_of
from effectflow.checkpoint.order import Spans
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.values import Tree, bounded

When: TypeAlias = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class JournalLine:
    """An entry of a journal as text.

    Attributes:
        number: its number; the first one has 1.
        at: its time, in seconds since the epoch.
        kind: what it is, such as "Completed".
        text: what it says.
    """

    number: int
    at: float
    kind: str
    text: str


def journal_lines(entries: Iterable[Entry], when: When, *, first: int = 1) -> Iterator[JournalLine]:
    """Yield a line for each entry of a journal, oldest first.

    Parameters:
        when: returns a time, in seconds since the epoch, as text.
        first: the number of the first entry that gets a line.

    Example:
        >>> from effectflow.checkpoint import BeforeStep
        >>> [line] = journal_lines([BeforeStep("charge", 1, at=5.0)], str)
        >>> line.number, line.kind, line.text
        (1, 'BeforeStep', 'charge, attempt 1')
    """
    aside: list[int] = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, SetAside):
            aside.append(number)
        if number >= first:
            yield JournalLine(number, entry.at, *_text_of(entry, aside, when))


def _text_of(entry: Entry, aside: Sequence[int], when: When) -> tuple[str, str]:
    """Return the kind of an entry and its text.

    Parameters:
        aside: the numbers of earlier entries that set something aside.
    """
    match entry:
        case Started():
            fork = f", forked from {entry.forked_from} by {entry.by}" if entry.forked_from else ""
            return "Started", f"{entry.workflow} version {entry.version}{fork}"
        case Resumed(owner):
            return "Resumed", f"by {entry.by or process_of(owner)}{_reason_of(entry, aside)}"
        case BeforeStep(step, attempt):
            return "BeforeStep", f"{step}, attempt {attempt}"
        case Completed(step, output, duration):
            return "Completed", f"{step} in {duration:.3f} s -> {bounded(output, 60)}"
        case Failed(step, error, retryable):
            kind = "defect " if error.is_defect else ""
            again = "retryable" if retryable else "final"
            return "Failed", f"{step}: {kind}{error.type}: {error.message} ({again})"
        case Interrupted(step, in_progress, reason):
            where = "in" if in_progress else "after"
            return "Interrupted", f"{where} {step or 'no step'} ({reason})"
        case ChildStarted(path, run_id, workflow):
            return "ChildStarted", f"{path}: run {run_id} of {workflow}"
        case ChildEnded(path, status):
            return "ChildEnded", f"{path}: {status}"
        case Waiting(path):
            return "Waiting", f"{path} {wait_text(entry, when)}"
        case TimerFired(path):
            return "TimerFired", path
        case Local(path, end=end):
            return "Local", f"{path}: {end}"
        case Value(path, value):
            return "Value", f"{path} = {_value_text(path, value, when)}"
        case SetAside(path):
            return "SetAside", path
        case Signalled(path, topic):
            return "Signalled", f"{path} by {topic_text(topic)}"
        case Published(_, key, value):
            return "Published", f"{key} = {bounded(value, 60)}"
        case Paused(_, by):
            return "Paused", f"by {by}"
        case Suspended():
            return "Suspended", "all fibers wait"
        case CancelRequested(place=place, by=by):
            return "Cancelling", f"at {place or 'the beginning'}{f', asked by {by}' if by else ''}"
        case Finished(status=status, output=output, error=error):
            if status is RunStatus.CANCELLED and error is None:
                return "Finished", str(status)
            what = f"{error.type}: {error.message}" if error else bounded(output, 60)
            return "Finished", f"{status}: {what}"


def _value_text(path: str, value: Tree, when: When) -> str:
    """Return a recorded value; that of a timeout is the time when it ends."""
    is_deadline = path.rpartition("/")[2].partition("#")[0] == "timeout"
    if is_deadline and isinstance(value, float) and 0 <= value <= LATEST:
        return when(value)
    return bounded(value, 60)


def _reason_of(resumed: Resumed, aside: Sequence[int]) -> str:
    """Return why a run was resumed, if that was not only to continue it."""
    if resumed.dropped:
        return ", drops dead letters"
    void = Spans(resumed.void)
    if any(number in void for number in aside):
        return ", retries dead letters"
    if void:
        return ", tries again what failed"
    return ", after a crash" if resumed.after_crash else ""


def wait_text(wait: Waiting, when: When) -> str:
    """Return what a fiber waits for."""
    if wait.topic:
        return f"for {topic_text(wait.topic)}"
    if wait.child:
        return f"for run {wait.child}"
    return "forever" if wait.until is None else f"until {when(wait.until)}"


def topic_text(topic: str) -> str:
    """Return what a message is about, as in "signal approval"."""
    return topic.replace(":", " ", 1)
