"""Read what a journal recorded, by path, for a run that replays it.

`read_recording` is a pure pass over the entries. It applies the rules of settling: a failure stands
once an entry settles it, and any other failure is retried.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    BranchesEnded,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Decided,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Published,
    Ranges,
    Resumed,
    Signalled,
    SourceEnd,
    Suspended,
    Waiting,
)
from effectflow.checkpoint.errors import CompensationFailed
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.errors import TimedOut
from effectflow.effects.paths import StepPath, flow_of, step_path, steps_around

_TIMED_OUT = name_of_error(TimedOut)
_COMPENSATION_FAILED = name_of_error(CompensationFailed)
_UNDOING = re.compile(r"(^|/)saga(#\d+)?\[undo\]/")
"""Matches the paths of the flows that undo the body of a saga."""

_Kind: TypeAlias = Literal["step", "child", "wait", "published", "operator", "finalizer"]


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failed attempt of a step. `began` and `ended` are in seconds since the epoch."""

    error: ErrorRecord
    began: float
    ended: float


@dataclass(slots=True)
class RecordedStep:
    """The last attempt of a step.

    Attributes:
        attempts: its number, from 1.
        arguments: its arguments.
        ended: the sequence number of the entry that ended it; None if it was interrupted.
        is_completed: whether it succeeded, with `output`.
        error: the error of a failed attempt.
        retryable: whether a resume retries that failure.
        retry_at: when the step's own policy retries it.
        is_settled: whether the failure stands.
        spent: the number of attempts that do not count for the retry policy of the step: they were
            stopped from outside, or the run ended and was resumed after them.
        since: when the first attempt that counts began, in seconds since the epoch; None if none counts.
        began: when the last attempt began, in seconds since the epoch.
        failures: all failed attempts, oldest first. Defects are not among them.
        at_most_once: whether it is not executed again silently.
    """

    attempts: int
    arguments: Arguments | None = None
    ended: int | None = None
    is_completed: bool = False
    output: Tree = None
    error: ErrorRecord | None = None
    retryable: bool = True
    retry_at: float | None = None
    is_settled: bool = False
    spent: int = 0
    since: float | None = None
    began: float = 0.0
    failures: tuple[RecordedFailure, ...] = ()
    at_most_once: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether it may have happened and must not happen twice."""
        return self.at_most_once and self.may_have_happened

    @property
    def may_have_happened(self) -> bool:
        """Whether it may have acted: it succeeded, was interrupted, or was stopped by a timeout."""
        return self.error is None or self.error.type == _TIMED_OUT


@dataclass(slots=True)
class RecordedChild:
    """A nested or spawned run. The other attributes are as in `RecordedStep`.

    Attributes:
        begun: the entry that began it.
        input: the digest of its input.
        is_spawned: whether it is an independent run.
    """

    begun: int
    run_id: str
    input: str
    is_spawned: bool = False
    ended: int | None = None
    status: RunStatus | None = None
    output: Tree = None
    error: ErrorRecord | None = None
    is_settled: bool = False


@dataclass(slots=True)
class RecordedWait:
    """A wait.

    Attributes:
        sequence: the number of its entry.
        until: the time that it waits for, in seconds since the epoch; None without one.
        topic: the topic of the message that it waits for; empty without one.
        received: the entry of the message that it has received; None without one.
        value: the value of that message.
        child: the spawned run whose end it waits for, and that end if it is known; None without one.
    """

    sequence: int
    until: float | None
    topic: str = ""
    received: int | None = None
    value: Tree = None
    child: RecordedChild | None = None


@dataclass(slots=True)
class RecordedDecision:
    """A decision.

    Attributes:
        has_ended: whether the cancelled branches have ended.
        suppressed: the errors of their finalizers.
    """

    sequence: int
    value: Tree
    is_settled: bool = False
    has_ended: bool = False
    suppressed: tuple[ErrorRecord, ...] = ()


DEAD_LETTER = "dead_letter"
"""The name of the decision that sets an item aside."""


def is_dead_letter(path: str) -> bool:
    """Return whether a decision at this path sets an item aside."""
    return path.rpartition("/")[2].partition("#")[0] == DEAD_LETTER


@dataclass(slots=True)
class RecordedDeadLetter:
    """An item that was set aside because its last attempt failed.

    Attributes:
        sequence: the entry that records it.
        path: the path of that entry.
        content: the item, and how many items had failed by then.
        retry: the number of the reopening that retried it, or None.
        is_dropped: whether it no longer counts.
    """

    sequence: int
    path: str
    content: dict[str, Any]
    retry: int | None = None
    is_dropped: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it was neither retried nor dropped."""
        return self.retry is None and not self.is_dropped

    @property
    def flow(self) -> StepPath:
        """The branch of the item, such as `map[emma]`."""
        return StepPath(flow_of(self.path))

    @property
    def key(self) -> str:
        """The key of the item."""
        return self.flow.key or ""

    @property
    def item(self) -> Tree:
        """The item in its saved form."""
        return self.content["item"]

    @property
    def failed(self) -> int:
        """How many items of the job had failed by then."""
        return self.content["failed"]


@dataclass(frozen=True, slots=True)
class Item:
    """An operation, operator or finalizer that a flow reached: its first entry and its path."""

    sequence: int
    path: str
    kind: _Kind


@dataclass(slots=True)
class RecordedFlow:
    """What one flow reached, in order. `item` is the digest of the item of a branch without a key."""

    items: list[Item] = field(default_factory=lambda: [])
    item: str | None = None


class Recording:
    """Everything that a journal records of a run.

    Attributes:
        steps, children, waits, decisions: by path.
        source_ends: the ends of the sources of finalizers, by the path of the finalizer.
        flows: what each flow reached, by its path.
        branches: the flows of each operator, by its path.
        places: the paths of everything that a flow reached.
        left_behind: the paths that a changed workflow need not reach.
        dead_letters: the items that were set aside, by the path of the entry that records it.
        reopenings: how often dead letters were retried or dropped.
        reopened_at: the entry of the last reopening, if the run has not ended since; otherwise None.
        repeated: the at-most-once steps that may have happened, and that the last reopening repeats.
        former_children: the runs within this one that other ones may replace, oldest first, by path
            and id: a reopening repeats them, or another attempt of the step around them.
        spawned: the ids of the spawned runs that are cancelled with this one, by the entries that began
            them.
        cancelled_at: the entry that requested the cancellation of the run, or None.
        decided_within: the paths of the decisions within a step, by its path.
    """

    def __init__(self) -> None:
        self.steps: dict[str, RecordedStep] = {}
        self.children: dict[str, RecordedChild] = {}
        self.waits: dict[str, RecordedWait] = {}
        self.decisions: dict[str, RecordedDecision] = {}
        self.source_ends: dict[str, SourceEnd] = {}
        self.flows: dict[str, RecordedFlow] = {}
        self.branches: dict[str, list[str]] = {}
        self.places: set[str] = set()
        self.left_behind: set[str] = set()
        self.dead_letters: dict[str, RecordedDeadLetter] = {}
        self.reopenings = 0
        self.reopened_at: int | None = None
        self.repeated: list[str] = []
        self.former_children: dict[str, dict[str, RecordedChild]] = {}
        self.spawned: dict[int, str] = {}
        self.cancelled_at: int | None = None
        self.decided_within: dict[str, list[str]] = {}

    @property
    def open_dead_letters(self) -> list[RecordedDeadLetter]:
        """The dead letters that were neither retried nor dropped, in the order of the journal."""
        return [letter for letter in self.dead_letters.values() if letter.is_open]

    @property
    def has_lasting_failures(self) -> bool:
        """Whether a resume gets a recorded failure again instead of retrying what failed."""
        return (
            any(
                step.error and (step.is_settled or not step.retryable)
                for step in self.steps.values()
            )
            or any(child.error and child.is_settled for child in self.children.values())
            or any(end.error for end in self.source_ends.values())
        )

    def failures_of(self, letter: RecordedDeadLetter) -> list[RecordedFailure]:
        """Return all failed attempts of the item of a dead letter, oldest first."""
        flow = letter.flow
        reached = [item.path for item in self.flows[flow].items if item.kind == "step"]
        return [failure for path in reached for failure in self.steps[path].failures]

    def steps_of(self, item: Item) -> Iterator[str]:
        """Yield the path of a step or nested run, or of those within an operator or finalizer."""
        if item.kind in ("step", "child"):
            yield item.path
            return
        for name in (item.path, *self.branches.get(item.path, ())):
            if name in self.flows:
                for inner in self.flows[name].items:
                    yield from self.steps_of(inner)

    def forget(self, paths: set[str]) -> None:
        """Forget everything that is recorded at these paths and below them."""
        by_path: tuple[dict[str, Any], ...] = (
            self.steps,
            self.children,
            self.waits,
            self.decisions,
            self.source_ends,
            self.flows,
            self.branches,
            self.dead_letters,
        )
        for recorded in by_path:
            for path in [path for path in recorded if _is_below(path, paths)]:
                del recorded[path]
        self.places = {path for path in self.places if not _is_below(path, paths)}

    def add(
        self, sequence: int, path: str, kind: _Kind, digest: str | None = None, step: str = ""
    ) -> None:
        """Add what a flow reached and everything around it up to a step, unless it is known."""
        if path in self.places:
            return
        self.places.add(path)
        name = flow_of(path)
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = RecordedFlow()
            self._add_around(sequence, name, step)
        flow.items.append(Item(sequence, path, kind))
        if digest is not None and flow.item is None:
            flow.item = digest

    def _add_around(self, sequence: int, flow: str, step: str) -> None:
        """Add the operator or finalizer that a flow is part of. The body of a step has none."""
        operator = flow
        if flow.endswith("]"):
            operator = flow[: flow.rfind("[")]
            self.branches.setdefault(operator, []).append(flow)
        if operator and operator != step and operator not in self.steps:
            kind = "finalizer" if operator in self.source_ends else "operator"
            self.add(sequence, operator, kind, step=step)

    def add_received(self, path: str, wait: RecordedWait, step: str) -> None:
        """Add a wait within a step that has received its message: the next attempt receives it, too."""
        self.add(wait.sequence, path, "wait", step=step)
        self.waits[path] = wait

    def has_within(self, step: str) -> bool:
        """Return whether anything is recorded inside a step."""
        return step in self.flows or step in self.decided_within

    def begin_anew(self, step: str) -> None:
        """Forget what an attempt of a step did, because its retry policy begins it anew.

        Except for the messages that it received: the next attempt receives them, too.
        """
        received: list[tuple[str, RecordedWait]] = []
        names = [step]
        while names:
            name = names.pop()
            for path in self.decided_within.pop(name, ()):
                self.decisions.pop(path, None)
                self.dead_letters.pop(path, None)
            flow = self.flows.pop(name, None)
            for item in () if flow is None else flow.items:
                path = item.path
                names += [path, *self.branches.pop(path, ())]
                self.places.discard(path)
                self.steps.pop(path, None)
                self.source_ends.pop(path, None)
                child, wait = self.children.pop(path, None), self.waits.pop(path, None)
                if child is not None:
                    self.add_former_child(path, child)
                if wait is not None and wait.received is not None:
                    received.append((path, wait))
        for path, wait in received:
            self.add_received(path, wait, step)

    def replace_child(self, path: str, run_id: str, input: str) -> None:
        """Let another nested run take the place of one that was cancelled."""
        self.children.pop(path, None)
        cancelled = RecordedChild(0, run_id, input, status=RunStatus.CANCELLED)
        self.add_former_child(path, cancelled)

    def add_former_child(self, path: str, child: RecordedChild) -> None:
        """Add a run within this one that another one may replace."""
        self.former_children.setdefault(path, {})[child.run_id] = child

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
        open: the steps that have begun and not ended, by path.
        failed_within: the sequence numbers of all failures within a step, by its path.
    """

    def __init__(self) -> None:
        self.recording = Recording()
        self.failed_within: dict[str, list[int]] = {}
        self.unsettled: dict[int, tuple[str, _Failure]] = {}
        self.order: list[int] = []
        self.open: dict[str, RecordedStep] = {}
        self.has_finished = False
        self.is_given_up = False

    def take(self, sequence: int, entry: Entry) -> None:
        recording = self.recording
        match entry:
            case BeforeStep(step=path):
                self._begin(entry.settles, entry.source_ends)
                recording.add(sequence, path, "step", entry.item)
                self._begin_step(entry)
            case Completed(step=path):
                self._settle(entry.settles)
                step = self.open.pop(path, recording.steps[path])
                step.ended, step.is_completed, step.output = sequence, True, entry.output
            case Failed(step=path):
                if entry.retry_at is not None:
                    self._begin_anew(path)
                self._fail(sequence, path, self._failed_step(sequence, entry))
            case Decided(path=path):
                self._settle(entry.settles)
                if is_dead_letter(path) and isinstance(entry.value, dict):
                    recording.dead_letters[path] = RecordedDeadLetter(sequence, path, entry.value)
                decision = RecordedDecision(sequence, entry.value)
                recording.decisions[path] = decision
                step = next(steps_around(path, recording.steps), None)
                if step is not None:
                    recording.decided_within.setdefault(step, []).append(path)
                if entry.failed:
                    self._fail(sequence, path, decision)
            case BranchesEnded(path=path):
                if path in recording.decisions:
                    decision = recording.decisions[path]
                    decision.has_ended, decision.suppressed = True, entry.failures
            case Waiting(path=path):
                self._begin(entry.settles, ())
                recording.add(sequence, path, "wait", entry.item)
                child = RecordedChild(sequence, entry.child, "") if entry.child else None
                wait = RecordedWait(sequence, entry.until, entry.topic, child=child)
                recording.waits[path] = wait
            case Signalled(path=path):
                wait = recording.waits[path]
                wait.received, wait.value = sequence, entry.value
            case Published(path=path):
                # Within a step without steps it has no path, because each attempt publishes again.
                if path:
                    recording.add(sequence, path, "published", entry.item)
            case CancelRequested():
                if recording.cancelled_at is None:
                    recording.cancelled_at = sequence
            case ChildStarted(path=path):
                self._begin(entry.settles, entry.source_ends)
                recording.add(sequence, path, "child", entry.item)
                self._begin_child(sequence, entry)
            case ChildEnded():
                self._end_child(sequence, entry)
            case Resumed():
                self.resume()
                recording.leave_behind(entry.abandoned)
                if entry.retried or entry.dropped:
                    recording.reopened_at = sequence
                    self._reopen(entry)
            case Finished():
                self.has_finished = True
                self.is_given_up = (
                    entry.error is not None and entry.error.type == _COMPENSATION_FAILED
                )
                recording.reopened_at = None
            case Suspended():
                # A suspended step continues where it waited, which is not another attempt.
                for step in self.open.values():
                    step.spent += 1
            case Interrupted(step=path) if path in self.open:
                # It was stopped from outside, and has not failed.
                self.open.pop(path).spent += 1
            case _:
                pass

    def _begin_step(self, entry: BeforeStep) -> None:
        recording, path = self.recording, entry.step
        before = recording.steps.get(path)
        if before is not None and before.ended in self.unsettled:
            self._forget(before.ended)
        recording.steps[path] = RecordedStep(
            entry.attempt,
            entry.arguments,
            spent=before.spent if before else 0,
            since=before.since if before and before.since is not None else entry.at,
            began=entry.at,
            failures=before.failures if before else (),
            at_most_once=entry.at_most_once,
        )
        self.open[path] = recording.steps[path]

    def _begin_anew(self, step: str) -> None:
        """Forget what the attempt of a step did, because the retry policy of the step begins another."""
        recording = self.recording
        if recording.has_within(step):
            for sequence in self.failed_within.pop(step, ()):
                if sequence in self.unsettled:
                    self._forget(sequence)
            recording.begin_anew(step)

    def _failed_step(self, sequence: int, entry: Failed) -> RecordedStep:
        """Return the step that this entry ends, with its error."""
        step = self.open.pop(entry.step, self.recording.steps[entry.step])
        step.ended, step.error = sequence, entry.error
        step.retryable, step.retry_at = entry.retryable, entry.retry_at
        if not entry.error.is_defect:
            failure = RecordedFailure(entry.error, step.began, entry.at)
            step.failures = (*step.failures, failure)
        return step

    def _begin_child(self, sequence: int, entry: ChildStarted) -> None:
        recording, path = self.recording, entry.path
        before = recording.children.get(path)
        if before is not None and before.ended in self.unsettled:
            self._forget(before.ended)
        if before is not None and before.run_id != entry.run_id:
            recording.replace_child(path, before.run_id, before.input)
        recording.children[path] = RecordedChild(
            sequence, entry.run_id, entry.input, entry.is_spawned
        )
        if entry.is_spawned and not entry.is_detached:
            recording.spawned[sequence] = entry.run_id

    def _end_child(self, sequence: int, entry: ChildEnded) -> None:
        recording, path = self.recording, entry.path
        waited = recording.waits.get(path)
        child = recording.children[path] if waited is None else waited.child
        assert child is not None
        if waited is not None and child.ended in self.unsettled:
            self._forget(child.ended)
        if waited is None and child.is_spawned:
            # The spawn was rejected: the run with this id belongs to another run.
            recording.spawned.pop(child.begun, None)
        child.ended, child.status = sequence, entry.status
        child.output, child.error = entry.output, entry.error
        if entry.status is not RunStatus.COMPLETED:
            self._fail(sequence, path, child)

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
                if self.is_given_up and _UNDOING.search(path) and not failure.is_unknown:
                    # The run waits for someone to resume it, which retries the undo.
                    failure.retryable = True
        self.has_finished = False

    def _forget_reactions(self, sequence: int, path: str) -> None:
        """Forget the waits and operators of what only reacted to a failure, such as `tap_err`.

        The failure is retried, so the flows around it need not reach these again.
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

    def _reopen(self, entry: Resumed) -> None:
        """Retry or drop dead letters. What followed their jobs, and used the results, runs again."""
        recording = self.recording
        recording.reopenings += 1
        recording.repeated = []
        jobs: dict[str, None] = {}
        for letter in recording.dead_letters.values():
            if _is_within(letter.sequence, entry.retried):
                letter.retry = recording.reopenings
                items = recording.flows[letter.flow].items
                # Earlier ones were repeated already.
                last = [item.path for item in items if item.path in recording.steps][-1]
                self._note_repeated(last, recording.steps[last])
            elif _is_within(letter.sequence, entry.dropped):
                letter.is_dropped = True
            else:
                continue
            jobs[StepPath(flow_of(letter.path)).operator] = None
        for job in jobs:
            self._reopen_job(StepPath(job))

    def _reopen_job(self, job: StepPath) -> None:
        recording = self.recording
        if job not in recording.places:
            # An earlier job was reopened, so this one runs again as a whole.
            return
        flow, occurrence = job.flow, job.occurrence
        groups = step_path(flow, "reduce", occurrence)
        for name, reached in recording.flows.items():
            if name.startswith(f"{groups}["):
                # With the value of a retried item, the group is a different step.
                recording.left_behind.update(item.path for item in reached.items)
                reached.items = []
        own = {groups, step_path(flow, "mapped", occurrence)}
        place = str(job)
        while True:
            around = flow_of(place)
            self._forget_after(place, around, own)
            if not around:
                return
            # A branch belongs to its operator, and the body of a step to the step.
            place = StepPath(around).operator
            step = recording.steps.get(place)
            if step is not None:
                self._note_repeated(place, step)
                step.ended, step.is_completed, step.output, step.error = None, False, None, None

    def _forget_after(self, place: str, flow: str, kept: set[str]) -> None:
        """Forget what a flow did after it reached a place, and what the operator there decided."""
        recording = self.recording
        items = recording.flows[flow].items
        at = next((number for number, item in enumerate(items) if item.path == place), None)
        if at is None:
            return
        since = items[at].sequence
        for path, decision in list(recording.decisions.items()):
            is_later = decision.sequence > since and flow_of(path) == flow
            if is_later or path == f"{place}/deadline":
                del recording.decisions[path]
        gone = {item.path for item in items[at + 1 :]} - kept
        if gone:
            recording.flows[flow].items = [item for item in items if item.path not in gone]
            for sequence, (path, _) in list(self.unsettled.items()):
                if _is_below(path, gone):
                    self._forget(sequence)
            for path, step in recording.steps.items():
                if _is_below(path, gone):
                    self._note_repeated(path, step)
            for path, child in recording.children.items():
                if _is_below(path, gone):
                    recording.add_former_child(path, child)
            recording.forget(gone)

    def _note_repeated(self, path: str, step: RecordedStep) -> None:
        if step.is_unknown:
            self.recording.repeated.append(path)

    def _begin(self, settles: Ranges, source_ends: tuple[SourceEnd, ...]) -> None:
        self._settle(settles)
        for end in source_ends:
            self.recording.source_ends[end.finalizer] = end

    def _fail(self, sequence: int, path: str, failure: _Failure) -> None:
        self.unsettled[sequence] = (path, failure)
        self.order.append(sequence)
        for step in steps_around(path, self.recording.steps):
            self.failed_within.setdefault(step, []).append(sequence)

    def _settle(self, ranges: Ranges) -> None:
        for first, last in ranges:
            begin, end = bisect_left(self.order, first), bisect_right(self.order, last)
            for sequence in self.order[begin:end]:
                self.unsettled.pop(sequence)[1].is_settled = True
            del self.order[begin:end]

    def _forget(self, sequence: int) -> None:
        del self.unsettled[sequence]
        del self.order[bisect_left(self.order, sequence)]


def _is_below(path: str, paths: set[str]) -> bool:
    """Return whether one of these paths is this path, or encloses it."""
    while path:
        if path in paths or StepPath(path).operator in paths:
            return True
        path = flow_of(path)
    return False


def _is_within(sequence: int, ranges: Ranges) -> bool:
    return any(first <= sequence <= last for first, last in ranges)


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
