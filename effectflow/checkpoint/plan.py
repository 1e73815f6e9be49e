"""What a resume would do, decided from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    Entry,
    Failed,
    Finished,
    Interrupted,
)
from effectflow.checkpoint.past import read_past
from effectflow.checkpoint.store import RunStatus

__all__ = ["ResumePlan", "failure_that_stands", "plan_resume"]


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Where a resume goes on.

    Attributes:
        start: the first step that it would run. None if the run is complete, or if only the
            workflow's own code knows what comes next.
        retry_current: whether that step was begun before and is run again.
        skip: the steps whose recorded output is used instead of running them.
        is_complete: whether the run has ended well, so that a resume yields its recorded output. Two
            plans are equal if they say the same of steps.
        fails_again: the step whose failure ended the run and stands, so that a resume fails with it
            again: see `failure_that_stands`. To try again, start the work anew, under another id. None
            if there is none, and in what `plan_resume` gives, as a checkpoint does not tell.
    """

    start: str | None
    retry_current: bool
    skip: tuple[str, ...]
    is_complete: bool = field(default=False, compare=False)
    fails_again: str | None = field(default=None, compare=False)


def plan_resume(
    checkpoint: Checkpoint,
    definition: Definition | None = None,
    *,
    following: Callable[[Checkpoint], str | None] | None = None,
) -> ResumePlan:
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
            comes after another, if they follow one another as they are listed.
        following: what says it for any other workflow: the path of the step to come, or None.

    Fails (raises) with DefinitionChanged if `definition` is not what the run was started with.
    """
    skip = tuple(step.step for step in checkpoint.completed_steps)
    if definition is not None:
        changed = definition.changed_since(checkpoint.definition, checkpoint.run_id)
        if changed is not None:
            raise changed
    if checkpoint.status is RunStatus.COMPLETED:
        return ResumePlan(None, False, skip, is_complete=True)
    match checkpoint.state:
        case BeforeStep(step) | Interrupted(step, in_progress=True):
            return ResumePlan(step, True, skip)
        case Failed(step, _, retryable):
            return ResumePlan(step, retryable, skip)
        case None | Completed() | Interrupted():
            if following is None:
                following = partial(_listed_next, definition or checkpoint.definition)
            start = following(checkpoint)
            return ResumePlan(start, start in checkpoint.metadata.attempts, skip)


def failure_that_stands(entries: Iterable[Entry]) -> str | None:
    """The step whose failure ended a run and ends it again if it is resumed; None if there is none.

    Pure. A failure that passes no other step on its way out is tried again. One that does is settled by
    it: that step may have undone what the failed one was to go on from. Of a failure that was made
    another one on its way (by `map_err`, say) nothing is known here.
    """
    known = tuple(entries)
    last = known[-1] if known else None
    if not isinstance(last, Finished) or last.error is None:
        return None
    error, standing = last.error, None
    for path, step in read_past(known).steps.items():
        if step.error is None or step.is_completed:
            continue
        if (step.error.type, step.error.message) == (error.type, error.message):
            if step.retryable and not step.was_handled:
                return None
            standing = path
    return standing


def _listed_next(definition: Definition, checkpoint: Checkpoint) -> str | None:
    """The step that the definition lists after the one that the run stands at."""
    if definition.structure:
        return None
    step = _after(checkpoint.state.step if checkpoint.state else None, definition.steps)
    # The run has gone on after a failure that its code handled; only the code knows to what.
    failed = {item.step for item in checkpoint.history if item.outcome == "failed"}
    return None if step in failed else step


def _after(step: str | None, steps: tuple[str, ...]) -> str | None:
    """The step that comes after this one, or the first, where the definition says it."""
    if step is None:
        return steps[0] if steps else None
    if step not in steps:
        return None
    following = steps.index(step) + 1
    return steps[following] if following < len(steps) else None
