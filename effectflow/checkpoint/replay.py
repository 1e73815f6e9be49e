"""Read what a journal recorded, by path, for a run that replays it.

`read_recording` is a pure pass over the entries. It applies the rules of settling: a failure stands
once an entry settles it, and any other failure is retried.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from effectflow.checkpoint.entries import (
    BeforeStep,
    BranchesEnded,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Decided,
    Entry,
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
from effectflow.checkpoint.recording import (
    RecordedChild,
    RecordedDeadLetter,
    RecordedDecision,
    RecordedFailure,
    RecordedStep,
    RecordedWait,
    Recording,
    is_below,
    is_dead_letter,
)
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.paths import StepPath, flow_of, step_path, steps_around

_COMPENSATION_FAILED = name_of_error(CompensationFailed)
_UNDOING = re.compile(r"(^|/)saga(#\d+)?\[undo\]/")
"""Matches the paths of the flows that undo the body of a saga."""


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
        order: these numbers, sorted.
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
                self._decide(sequence, path, entry)
            case BranchesEnded(path=path) if path in recording.decisions:
                decision = recording.decisions[path]
                decision.has_ended, decision.suppressed = True, entry.failures
            case Waiting(path=path):
                self._begin(entry.settles, ())
                recording.add(sequence, path, "wait", entry.item)
                self._begin_wait(sequence, entry)
            case Signalled(path=path):
                wait = recording.waits[path]
                wait.received, wait.value = sequence, entry.value
            case Published(path=path):
                # Within a step without steps it has no path, because each attempt publishes again.
                if path:
                    recording.add(sequence, path, "published", entry.item)
            case CancelRequested() if recording.cancelled_at is None:
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
                self._finish(entry)
            case Suspended():
                # A suspended step continues where it waited, which is not another attempt.
                for step in self.open.values():
                    step.spent += 1
            case Interrupted(step=path) if path in self.open:
                # It was stopped from outside, and has not failed.
                self.open.pop(path).spent += 1
            case _:
                pass

    def _decide(self, sequence: int, path: str, entry: Decided) -> None:
        recording = self.recording
        if is_dead_letter(path) and isinstance(entry.value, dict):
            recording.dead_letters[path] = RecordedDeadLetter(sequence, path, entry.value)
        decision = RecordedDecision(sequence, entry.value)
        recording.decisions[path] = decision
        step = next(steps_around(path, recording.steps), None)
        if step is not None:
            recording.decided_within.setdefault(step, []).append(path)
        if entry.failed:
            self._fail(sequence, path, decision)

    def _begin_step(self, entry: BeforeStep) -> None:
        recording, path = self.recording, entry.step
        before = recording.steps.get(path)
        if before is not None:
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
        for sequence in self.failed_within.pop(step, ()):
            self._forget(sequence)
        self.recording.begin_anew(step)

    def _failed_step(self, sequence: int, entry: Failed) -> RecordedStep:
        """Return the step that this entry ends, with its error."""
        step = self.open.pop(entry.step, self.recording.steps[entry.step])
        step.ended, step.error = sequence, entry.error
        step.retryable, step.retry_at = entry.retryable, entry.retry_at
        if not entry.error.is_defect:
            failure = RecordedFailure(entry.error, step.began, entry.at)
            step.failures = (*step.failures, failure)
        return step

    def _begin_wait(self, sequence: int, entry: Waiting) -> None:
        child = RecordedChild(sequence, entry.child, "") if entry.child else None
        wait = RecordedWait(sequence, entry.until, entry.topic, child=child)
        self.recording.waits[entry.path] = wait

    def _begin_child(self, sequence: int, entry: ChildStarted) -> None:
        recording, path = self.recording, entry.path
        before = recording.children.get(path)
        if before is not None:
            self._forget(before.ended)
            if before.run_id != entry.run_id:
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
        if waited is not None:
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

    def _finish(self, entry: Finished) -> None:
        self.has_finished = True
        self.is_given_up = entry.error is not None and entry.error.type == _COMPENSATION_FAILED
        self.recording.reopened_at = None

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
                if is_below(path, gone):
                    self._forget(sequence)
            for path, step in recording.steps.items():
                if is_below(path, gone):
                    self._note_repeated(path, step)
            for path, child in recording.children.items():
                if is_below(path, gone):
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

    def _forget(self, sequence: int | None) -> None:
        """Forget the failure of an entry, if it is one that nothing has settled."""
        if sequence is not None and self.unsettled.pop(sequence, None) is not None:
            del self.order[bisect_left(self.order, sequence)]


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
