"""`ResumePlan`: what a resume would do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.endings import Ending, FailedWith, Halted, Raised
from effectflow.checkpoint.entries import (
    BeforeStep,
    CancelRequested,
    Completed,
    Failed,
    Interrupted,
    Ordered,
)
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.order import path_of
from effectflow.checkpoint.run_info import RunStatus
from effectflow.effects.paths import is_within, outermost

if TYPE_CHECKING:
    from effectflow.checkpoint.step import StepDefinition


@dataclass(frozen=True, slots=True)
class Unverified:
    """A recorded step that a plan could not reach, and the reason."""

    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume does.

    Attributes:
        start: the steps and spawned runs that it begins with, one for each fiber that can continue.
        retry: the members of `start` that have begun before.
        skip: the steps whose recorded output is used instead of running them, including those inside a
            member of `retry`.
        recurs: the steps whose recorded failures end the run again: their errors are what it ends with,
            or are among the causes of that. To try again, start the work with another run id.
        waiting: the waits that have not ended.
        unverified: recorded steps that the plan could not reach without running effects.
        problem: the error with which a resume would fail; None if there is none.
        is_complete: whether the run is complete, so that a resume yields its recorded output.
        reason: why `start` is empty, if the plan cannot tell what it would be.
    """

    start: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    recurs: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unverified: tuple[Unverified, ...] = ()
    problem: CheckpointError | None = None
    is_complete: bool = False
    reason: str = ""


def skipped_steps(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the completed steps that a replay of this checkpoint skips, without those inside others."""
    return tuple(outermost(step.step for step in checkpoint.completed_steps))


def plan_resume(checkpoint: Checkpoint, definition: Definition | None = None) -> ResumePlan:
    """Return what a resume of this checkpoint does. Pure: it reads and runs nothing.

    It works for workflows with a declared list of steps (`Workflow.of_steps`). For others, `start` is
    empty and `reason` says why; `Workflow.plan` replays those.

    ==================================  =================  =============  =============
    head state                          start              retry          recurs
    ==================================  =================  =============  =============
    `BeforeStep(step)`                  the step           the step
    `Completed(step)`                   the one after it
    `Failed(step, retryable=True)`      the step           the step
    `Failed(step, retryable=False)`                                       the step
    `Interrupted(step, in_progress)`    the step, or the   the step, if
                                        one after it       in progress
    ==================================  =================  =============  =============

    Parameters:
        checkpoint: the checkpoint of the run.
        definition: the current definition of the workflow; that of the checkpoint by default. If it
            changed, the plan has DefinitionChanged as its `problem`.
    """
    skip = skipped_steps(checkpoint)
    if checkpoint.status is RunStatus.COMPLETED:
        return ResumePlan(skip=skip, is_complete=True)
    if definition is not None:
        changed = definition.changed_since(checkpoint.definition, checkpoint.run_id)
        if changed is not None:
            return ResumePlan(skip=skip, problem=changed)
    current = definition or checkpoint.definition
    if not current.is_list:
        reason = "only the workflow's code determines the next step: use Workflow.plan"
        return ResumePlan(skip=skip, reason=reason)
    match checkpoint.state:
        case Failed(step=step, retryable=False):
            return ResumePlan(skip=skip, recurs=(step,))
        case BeforeStep(step=step) | Failed(step=step):
            return ResumePlan((step,), (step,), skip)
        case Interrupted(step=str(step), in_progress=True):
            return ResumePlan((step,), (step,), skip)
        case None | Completed() | Interrupted():
            done = set(skip)
            return ResumePlan(
                tuple(step for step in current.steps if step not in done)[:1], (), skip
            )


def resumed_at(checkpoint: Checkpoint) -> str | None:
    """Return the step that a resume executes first; None if only a replay can tell."""
    start = plan_resume(checkpoint).start
    if start:
        return start[0]
    match checkpoint.state:
        case BeforeStep(step=step) | Failed(step=step, retryable=True):
            return step
        case Interrupted(step=step, in_progress=True):
            return step
        case _:
            return None


_IN_PROGRESS = "it is within a step that is in progress, and whose code a check does not run"


class Planning:
    """What a replay finds out that ends at the frontier, where a resume would begin something.

    Attributes:
        wanted: the paths of steps that the replay looks for, also within steps in progress.
        is_check: whether only the code is checked. Such a replay also enters calls of workflows that are
            in progress.
        found: the definitions of the wanted steps that it has reached, by path.
        awaited: the types of the messages that it has come to wait for, by topic.
        undos: what the sagas around the places at the frontier would undo, the next one first.
        is_parked: whether a fiber has ended because a plan must not do what comes next.
        reason: why the first fiber has.
    """

    def __init__(self, wanted: Collection[str] = (), *, is_check: bool = False) -> None:
        self.wanted = wanted
        self.is_check = is_check
        self.found: dict[str, StepDefinition] = {}
        self.awaited: dict[str, object] = {}
        self.undos: list[str] = []
        self.is_parked = False
        self.reason = ""
        self._start: list[str] = []
        self._retry: list[str] = []
        self._skip: list[str] = []
        self._waiting: list[str] = []
        self._unverified: dict[str, str] = {}
        self._failures: list[tuple[str, object]] = []

    def park(self, reason: str) -> None:
        """Note that a fiber does not go on."""
        self.is_parked = True
        self.reason = self.reason or reason

    def reaches(self, path: str, definition: StepDefinition) -> None:
        """Note that the code has reached a step."""
        if path in self.wanted:
            self.found[path] = definition

    @property
    def refuses_unknown(self) -> bool:
        """Whether a step of unknown outcome is a problem, as it is for a resume."""
        return not (self.is_check or self.wanted)

    def enters(self, path: str, definition: StepDefinition) -> bool:
        """Return whether the replay enters a step that is in progress."""
        is_checked = self.is_check and definition.is_body
        return is_checked or any(is_within(one, path) for one in self.wanted)

    def skips(self, path: str, ended: Completed | Failed) -> None:
        """Note that a resume uses the recorded outcome of a step."""
        if isinstance(ended, Completed):
            self._skip.append(path)

    def fails(self, path: str, error: object) -> None:
        """Note a recorded failure that was replayed."""
        self._failures.append((path, error))

    def may_skip(self, entry: Ordered, frontier: Iterable[str]) -> bool:
        """Return whether a recorded entry need not be reached: a resume reaches it, and a plan cannot.

        `frontier` has the places of the fibers that wait there.
        """
        if isinstance(entry, CancelRequested) and not self.is_check:
            return self.is_parked
        path = path_of(entry) or "its cancellation"
        if any(is_within(path, place) for place in frontier):
            if isinstance(entry, Completed):
                self._skip.append(path)
            if self.is_check:
                self._unverified.setdefault(path, _IN_PROGRESS)
            return True
        if self.is_parked and (self.is_check or isinstance(entry, BeforeStep)):
            self._unverified.setdefault(path, self.reason)
        return self.is_parked

    def waits(self, place: str) -> None:
        """Note that a fiber waits for a time, a message or another run."""
        self._waiting.append(place)

    def starts(self, place: str, *, has_begun: bool) -> None:
        """Note that a resume begins here. `has_begun` says whether an earlier life has."""
        self._start.append(place)
        if has_begun:
            self._retry.append(place)

    def plan(self, ending: Ending | None) -> ResumePlan:
        """Return the plan of a run that ended in this way; None if it did not end.

        Raises the defect that the body ended in, unless it is the recorded defect of a step.
        """
        recurs: list[str] = []
        match ending:
            case FailedWith(failure):
                recurs = self._origins(failure.error)
            case Raised(defect):
                recurs = self._origins(defect)
                if not recurs:
                    raise defect
            case _:
                pass
        return ResumePlan(
            tuple(self._start),
            tuple(self._retry),
            tuple(self._skip),
            tuple(recurs),
            tuple(self._waiting),
            tuple(Unverified(*one) for one in self._unverified.items()),
            ending.error if isinstance(ending, Halted) else None,
            reason="" if self._start else self.reason,
        )

    def _origins(self, error: object) -> list[str]:
        """Return the paths of the recorded failures that led to an error."""
        causes: set[int] = set()
        pending = [error]
        while pending:
            cause = pending.pop()
            if cause is None or id(cause) in causes:
                continue
            causes.add(id(cause))
            if isinstance(cause, list | tuple):
                pending += cause
            elif isinstance(cause, BaseException):
                # A body may have raised it in an `except` clause.
                pending += [cause.__cause__, cause.__context__]
                pending += [getattr(cause, "error", None)]
        return [path for path, found in self._failures if id(found) in causes]
