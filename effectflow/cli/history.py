"""`effectflow history`: the journal of a run, one entry per line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from effectflow.checkpoint import (
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
    RunStatus,
    SetAside,
    Signalled,
    Started,
    Suspended,
    TimerFired,
    Value,
    Waiting,
)
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.entries import write_entry
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.order import Spans
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.values import Tree, bounded, write_json
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import LatestOption
from effectflow.cli.render import when


@command(ServiceOption, latest=LatestOption)
async def history(access: Access, run_id: str) -> Answer:
    """Show the journal of a run, one entry per line.

    With --json, entries have no `output` after 64 MiB of outputs with common parts.
    """
    entries = await read_existing(access.store, run_id, access.seal)
    return Answer(_entry_trees(entries) if access.as_json else None, _journal_lines(entries))


_TIMES = ("at", "retry_at", "until")
"""The fields of entries that are times."""


def _entry_trees(entries: Iterable[Entry]) -> list[Tree]:
    """Return entries as plain data; without `output` once these are too long together."""
    trees: list[Tree] = []
    left = _MOST_OUTPUT
    for entry in entries:
        is_too_long = False
        if isinstance(entry, Completed) and entry.shared is not None:
            left -= len(write_json(entry.output))
            is_too_long = left <= 0
            entry = replace(entry, shared=None)
        tree = _entry_tree(entry)
        if is_too_long:
            # Absent, because null is the output None.
            del tree["output"]
        trees.append(tree)
    return trees


_MOST_OUTPUT = 64 * 1024 * 1024
"""The bytes of outputs with common parts that are shown, where each has these parts again."""


def _entry_tree(entry: Entry) -> dict[str, Tree]:
    """Return an entry as plain data, with its times in ISO 8601."""
    tree = write_entry(entry)
    times = {name: iso_time(tree[name]) for name in _TIMES if name in tree}
    return {**tree, **times}


def _journal_lines(entries: Iterable[Entry]) -> Iterable[str]:
    """Yield a line for each entry of a journal, oldest first."""
    aside: list[int] = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, SetAside):
            aside.append(number)
        yield f"{number:>6}  {when(entry.at)}  {_entry_text(entry, aside)}"


def _entry_text(entry: Entry, aside: Sequence[int]) -> str:
    """Return an entry as text. `aside` are the numbers of earlier entries that set something aside."""
    match entry:
        case Started():
            fork = f", forked from {entry.forked_from} by {entry.by}" if entry.forked_from else ""
            return f"Started      {entry.workflow} version {entry.version}{fork}"
        case Resumed(owner):
            return f"Resumed      by {entry.by or owner}{_reason_of(entry, aside)}"
        case BeforeStep(step, attempt):
            return f"BeforeStep   {step}, attempt {attempt}"
        case Completed(step, output, duration):
            return f"Completed    {step} in {duration:.3f} s -> {bounded(output, 60)}"
        case Failed(step, error, retryable):
            kind = "defect " if error.is_defect else ""
            again = "retryable" if retryable else "final"
            return f"Failed       {step}: {kind}{error.type}: {error.message} ({again})"
        case Interrupted(step, in_progress, reason):
            where = "in" if in_progress else "after"
            return f"Interrupted  {where} {step or 'no step'} ({reason})"
        case ChildStarted(path, run_id, workflow):
            return f"ChildStarted {path}: run {run_id} of {workflow}"
        case ChildEnded(path, status):
            return f"ChildEnded   {path}: {status}"
        case Waiting(path):
            return f"Waiting      {path} {wait_text(entry)}"
        case TimerFired(path):
            return f"TimerFired   {path}"
        case Local(path, end=end):
            return f"Local        {path}: {end}"
        case Value(path, value):
            return f"Value        {path} = {_value_text(path, value)}"
        case SetAside(path):
            return f"SetAside     {path}"
        case Signalled(path, topic):
            return f"Signalled    {path} by {topic_text(topic)}"
        case Published(_, key, value):
            return f"Published    {key} = {bounded(value, 60)}"
        case Paused(_, by):
            return f"Paused       by {by}"
        case Suspended():
            return "Suspended    all fibers wait"
        case CancelRequested(place=place, by=by):
            return f"Cancelling   at {place or 'the beginning'}{f', asked by {by}' if by else ''}"
        case Finished(status=status, output=output, error=error):
            if status is RunStatus.CANCELLED and error is None:
                return f"Finished     {status}"
            what = f"{error.type}: {error.message}" if error else bounded(output, 60)
            return f"Finished     {status}: {what}"


def _value_text(path: str, value: Tree) -> str:
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


def wait_text(wait: Waiting) -> str:
    """Return what a fiber waits for."""
    if wait.topic:
        return f"for {topic_text(wait.topic)}"
    if wait.child:
        return f"for run {wait.child}"
    return "forever" if wait.until is None else f"until {when(wait.until)}"


def topic_text(topic: str) -> str:
    """Return what a message is about, as in "signal approval"."""
    return topic.replace(":", " ", 1)
