"""`ResumePlan`: what a resume would do."""

from __future__ import annotations

from dataclasses import dataclass

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import BeforeStep, Completed, Failed, Interrupted
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.paths import outermost


@dataclass(frozen=True, slots=True)
class Unverified:
    """A recorded step or nested run that a plan could not reach, and the reason."""

    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume does, in the order of its flows.

    Attributes:
        start: the steps and nested runs that it begins with, one for each flow that can continue. If a
            branch ends a race or a parallel operator without a new step, scheduling determines which of
            the other branches begin a step before they are cancelled.
        retry: the members of `start` that have begun before.
        skip: the steps whose recorded output is used instead of running them, including those inside a
            member of `retry`.
        recurs: the steps whose recorded failures end the run again. To try again, start the work with
            another run id.
        waiting: the waits that have not ended.
        unverified: recorded steps and nested runs that the plan could not reach without running effects.
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
    steps = (definition or checkpoint.definition).steps
    if checkpoint.kind != "standard" or not steps:
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
            return ResumePlan(tuple(step for step in steps if step not in done)[:1], (), skip)
