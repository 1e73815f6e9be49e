"""What a resume would do, decided from the checkpoint alone."""

from __future__ import annotations

from dataclasses import dataclass

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import BeforeStep, Completed, Failed, Interrupted
from effectflow.checkpoint.store import RunStatus

__all__ = ["ResumePlan", "plan_resume"]


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Where a resume goes on.

    Attributes:
        start: the first step that it would run. None if the run is complete, or if only the
            workflow's own code knows what comes next.
        retry_current: whether that step was begun before and is run again.
        skip: the steps whose recorded output is used instead of running them.
    """

    start: str | None
    retry_current: bool
    skip: tuple[str, ...]


def plan_resume(checkpoint: Checkpoint, definition: Definition | None = None) -> ResumePlan:
    """What a resume of this checkpoint does. Pure: nothing is read and nothing is run.

    ==================================  =================  =============
    head state                          start              retry_current
    ==================================  =================  =============
    `BeforeStep(step)`                  the step           True
    `Completed(step)`                   the one after it   False
    `Failed(step, retryable)`           the step           `retryable`
    `Interrupted(step, in_progress)`    the step, or the   `in_progress`
                                        one after it
    ==================================  =================  =============

    Parameters:
        checkpoint: where the run stands.
        definition: the workflow as it is now; that of the checkpoint if not given. It says which step
            comes after another.

    Fails (raises) with DefinitionChanged if `definition` is not what the run was started with.
    """
    skip = tuple(step.step for step in checkpoint.completed_steps)
    if definition is not None:
        changed = definition.changed_since(checkpoint.definition, checkpoint.run_id)
        if changed is not None:
            raise changed
    if checkpoint.status is RunStatus.COMPLETED:
        return ResumePlan(None, False, skip)
    steps = (definition or checkpoint.definition).steps
    match checkpoint.state:
        case None:
            return ResumePlan(_after(None, steps), False, skip)
        case BeforeStep(step):
            return ResumePlan(step, True, skip)
        case Completed(step):
            return ResumePlan(_after(step, steps), False, skip)
        case Failed(step, _, retryable):
            return ResumePlan(step, retryable, skip)
        case Interrupted(step, in_progress):
            start = step if in_progress else _after(step, steps)
            return ResumePlan(start, in_progress, skip)


def _after(step: str | None, steps: tuple[str, ...]) -> str | None:
    """The step that comes after this one, or the first, where the definition says it."""
    if step is None:
        return steps[0] if steps else None
    if step not in steps:
        return None
    following = steps.index(step) + 1
    return steps[following] if following < len(steps) else None
