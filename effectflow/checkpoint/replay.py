"""What a journal records, by path, for a run that replays it.

`read_recording` is a pure pass over the entries. It applies the rules of settling: a failure stands
once an entry settles it, and any other failure is retried.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    BranchesEnded,
    ChildEnded,
    ChildStarted,
    Completed,
    Decided,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Ranges,
    Resumed,
    SourceEnd,
    Waiting,
)
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import flow_of

__all__ = [
    "Item",
    "RecordedChild",
    "RecordedDecision",
    "RecordedFlow",
    "RecordedStep",
    "RecordedWait",
    "Recording",
    "compressed",
    "read_recording",
]

_Kind: TypeAlias = Literal["step", "child", "wait", "operator", "finalizer"]


@dataclass(slots=True)
class RecordedStep:
    """The last attempt of a step.

    Attributes:
        begun: the sequence number of its BeforeStep.
        attempts: its number, from 1.
        arguments: its arguments.
        function: the qualified name of its function.
        ended: the sequence number of the entry that ended it; None if it was cut off.
        is_completed: whether it succeeded, with `output`.
        error: the error of a failed attempt.
        retryable: whether a resume retries that failure.
        retry_at: when the step's own policy retries it.
        is_settled: whether the failure stands.
        spent: the attempts that do not count against the step's own retry policy, because the run ended
            and was resumed after them.
        since: when the first attempt began that counts, in seconds since the epoch; None if none does.
    """

    begun: int
    attempts: int
    arguments: Arguments | None = None
    function: str | None = None
    ended: int | None = None
    is_completed: bool = False
    output: Tree = None
    error: ErrorRecord | None = None
    retryable: bool = True
    retry_at: float | None = None
    is_settled: bool = False
    spent: int = 0
    since: float | None = None


@dataclass(slots=True)
class RecordedChild:
    """A nested run. The attributes are as in `RecordedStep`."""

    begun: int
    run_id: str
    workflow: str
    input: str
    ended: int | None = None
    status: RunStatus | None = None
    output: Tree = None
    error: ErrorRecord | None = None
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class RecordedWait:
    """A wait until a time, in seconds since the epoch."""

    sequence: int
    until: float


@dataclass(slots=True)
class RecordedDecision:
    """A decision. `has_ended` tells whether the cancelled branches have ended."""

    sequence: int
    value: Tree
    failed: bool = False
    because: Ranges = ()
    is_settled: bool = False
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An operation, operator or finalizer that a flow reached: its first entry and its path."""

    sequence: int
    path: str
    kind: _Kind


@dataclass(slots=True)
class RecordedFlow:
    """What one flow reached, in order. `item` is the digest of the item of a branch without a key."""

    items: list[Item] = field(default_factory=list[Item])
    item: str | None = None


@dataclass(slots=True)
class Recording:
    """Everything that a journal records of a run.

    Attributes:
        steps, children, waits, decisions: by path.
        source_ends: the ends of the sources of finalizers, by the path of the finalizer.
        flows: what each flow reached, by its path.
        branches: the flows of each operator, by its path.
        places: the paths of everything that a flow reached.
        left_behind: the paths that a changed workflow need not reach.
        reopenings: how often the run was continued after it was complete.
    """

    steps: dict[str, RecordedStep] = field(default_factory=dict[str, RecordedStep])
    children: dict[str, RecordedChild] = field(default_factory=dict[str, RecordedChild])
    waits: dict[str, RecordedWait] = field(default_factory=dict[str, RecordedWait])
    decisions: dict[str, RecordedDecision] = field(default_factory=dict[str, RecordedDecision])
    source_ends: dict[str, SourceEnd] = field(default_factory=dict[str, SourceEnd])
    flows: dict[str, RecordedFlow] = field(default_factory=dict[str, RecordedFlow])
    branches: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    places: set[str] = field(default_factory=set[str])
    left_behind: set[str] = field(default_factory=set[str])
    reopenings: int = 0

    def leave_behind(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Let flows skip what they reached in these ranges of entries."""
        for first, last in ranges:
            for flow in self.flows.values():
                gone = [item for item in flow.items if first <= item.sequence <= last]
                if gone:
                    self.left_behind.update(item.path for item in gone)
                    flow.items = [item for item in flow.items if item not in gone]


def read_recording(entries: Iterable[Entry]) -> Recording:
    """Return what a journal records, as a resume of the run uses it. Pure."""
    reader = _Reader()
    for sequence, entry in enumerate(entries, 1):
        reader.take(sequence, entry)
    reader.resume()
    return reader.recording


_Failure: TypeAlias = RecordedStep | RecordedChild | RecordedDecision


class _Reader:
    """The state of the pass over the entries.

    Attributes:
        unsettled: the failures that no entry has settled, by the sequence number of their entry.
    """

    def __init__(self) -> None:
        self.recording = Recording()
        self.unsettled: dict[int, tuple[str, _Failure]] = {}
        self.order: list[int] = []
        self.has_finished = False

    def take(self, sequence: int, entry: Entry) -> None:
        recording = self.recording
        match entry:
            case BeforeStep(step=path):
                self._begin(sequence, entry.settles, entry.source_ends)
                self._add(sequence, path, "step", entry.item)
                before = recording.steps.get(path)
                if before is not None and before.ended in self.unsettled:
                    self._forget(before.ended)
                recording.steps[path] = RecordedStep(
                    sequence,
                    entry.attempt,
                    entry.arguments,
                    entry.function,
                    spent=before.spent if before else 0,
                    since=before.since if before and before.since is not None else entry.at,
                )
            case Completed(step=path):
                self._settle(entry.settles)
                step = recording.steps[path]
                step.ended, step.is_completed, step.output = sequence, True, entry.output
            case Failed(step=path):
                step = recording.steps[path]
                step.ended, step.error = sequence, entry.error
                step.retryable, step.retry_at = entry.retryable, entry.retry_at
                self._fail(sequence, path, step)
            case Decided(path=path):
                self._settle(entry.settles)
                decision = RecordedDecision(sequence, entry.value, entry.failed, entry.because)
                recording.decisions[path] = decision
                if entry.failed:
                    self._fail(sequence, path, decision)
            case BranchesEnded(path=path):
                if path in recording.decisions:
                    recording.decisions[path].has_ended = True
            case Waiting(path=path):
                self._begin(sequence, entry.settles, ())
                self._add(sequence, path, "wait", entry.item)
                recording.waits[path] = RecordedWait(sequence, entry.until)
            case ChildStarted(path=path):
                self._begin(sequence, entry.settles, entry.source_ends)
                self._add(sequence, path, "child", entry.item)
                before = recording.children.get(path)
                if before is not None and before.ended in self.unsettled:
                    self._forget(before.ended)
                recording.children[path] = RecordedChild(
                    sequence, entry.run_id, entry.workflow, entry.input
                )
            case ChildEnded(path=path):
                child = recording.children[path]
                child.ended, child.status = sequence, entry.status
                child.output, child.error = entry.output, entry.error
                if entry.status is not RunStatus.COMPLETED:
                    self._fail(sequence, path, child)
            case Resumed():
                self.resume()
                self._leave_behind(entry)
            case Finished():
                self.has_finished = True
            case Interrupted() | _:
                pass

    def resume(self) -> None:
        """Void the failed decisions that nothing settled: their operators continue and decide again."""
        decisions = self.recording.decisions
        for sequence in list(self.order):
            path, failure = self.unsettled[sequence]
            self._forget_reactions(sequence, path)
            if isinstance(failure, RecordedDecision):
                self._forget(sequence)
                if decisions.get(path) is failure:
                    del decisions[path]
                    if self.has_finished:
                        # A new attempt of the whole has a new deadline.
                        decisions.pop(f"{path}/deadline", None)
            elif self.has_finished and isinstance(failure, RecordedStep):
                failure.spent = failure.attempts
                failure.since = None
        self.has_finished = False

    def _forget_reactions(self, sequence: int, path: str) -> None:
        """Forget the waits and operators of what only reacted to a failure, such as `tap_err`.

        The failure is retried, so the flows around it need not come there again.
        """
        recording = self.recording
        for name in _flows_around(path):
            items = recording.flows[name].items if name in recording.flows else []
            while (
                items and items[-1].sequence > sequence and items[-1].kind in ("wait", "operator")
            ):
                item = items.pop()
                if item.kind == "wait":
                    recording.places.discard(item.path)
                    del recording.waits[item.path]
                else:
                    recording.left_behind.add(item.path)

    def _leave_behind(self, entry: Resumed) -> None:
        recording = self.recording
        recording.leave_behind(entry.abandoned)
        if entry.reopened:
            recording.reopenings += 1
        for path in entry.reopened:
            for name, flow in recording.flows.items():
                if name.startswith((f"{path}[", f"{path}/")):
                    recording.left_behind.update(item.path for item in flow.items)
                    flow.items = []
                elif any(item.path == path and item.kind == "step" for item in flow.items):
                    recording.left_behind.add(path)
                    flow.items = [item for item in flow.items if item.path != path]

    def _begin(self, sequence: int, settles: Ranges, source_ends: tuple[SourceEnd, ...]) -> None:
        self._settle(settles)
        for end in source_ends:
            self.recording.source_ends[end.finalizer] = end

    def _add(self, sequence: int, path: str, kind: _Kind, digest: str | None) -> None:
        """Add what a flow reached and everything around it, unless it is known."""
        recording = self.recording
        if path in recording.places:
            return
        recording.places.add(path)
        name = flow_of(path)
        flow = recording.flows.get(name)
        if flow is None:
            flow = recording.flows[name] = RecordedFlow()
            self._add_around(sequence, name)
        flow.items.append(Item(sequence, path, kind))
        if digest is not None and flow.item is None:
            flow.item = digest

    def _add_around(self, sequence: int, flow: str) -> None:
        """Add the operator or finalizer of which a flow is part. The body of a step has none."""
        recording = self.recording
        operator = flow
        if flow.endswith("]"):
            operator = flow[: flow.rfind("[")]
            recording.branches.setdefault(operator, []).append(flow)
        if operator and operator not in recording.steps:
            kind = "finalizer" if operator in recording.source_ends else "operator"
            self._add(sequence, operator, kind, None)

    def _fail(self, sequence: int, path: str, failure: _Failure) -> None:
        self.unsettled[sequence] = (path, failure)
        self.order.append(sequence)

    def _settle(self, ranges: Ranges) -> None:
        for first, last in ranges:
            begin, end = bisect_left(self.order, first), bisect_right(self.order, last)
            for sequence in self.order[begin:end]:
                self.unsettled.pop(sequence)[1].is_settled = True
            del self.order[begin:end]

    def _forget(self, sequence: int) -> None:
        del self.unsettled[sequence]
        del self.order[bisect_left(self.order, sequence)]


def _flows_around(path: str) -> Iterator[str]:
    """Yield the flow of an operation and the flows around it, the inner ones first."""
    flow = flow_of(path)
    yield flow
    while flow:
        flow = flow_of(flow)
        yield flow


def compressed(chosen: Iterable[int], among: list[int]) -> Ranges:
    """Return the chosen numbers as ranges that contain no other number of the sorted list `among`.

    Example:
        >>> compressed([3, 9, 4], among=[3, 4, 7, 9])
        ((3, 4), (9, 9))
    """
    ranges: list[tuple[int, int]] = []
    previous = -2
    for number in sorted(chosen):
        place = bisect_left(among, number)
        if place == previous + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
        previous = place
    return tuple(ranges)
