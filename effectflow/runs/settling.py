"""Give the outcome of a step by hand, if it is unknown, or if the step cannot succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from effectflow.checkpoint.entries import Completed, Failed, Resumed
from effectflow.checkpoint.errors import ChangeRejected, NotSerializable, RunNotFound
from effectflow.checkpoint.failures import is_exact, read_error, write_error
from effectflow.checkpoint.order import Order, read_order
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.values import mismatch_of, to_tree
from effectflow.checkpoint.values.exceptions import error_named
from effectflow.runs.control import Change, HeldRun, change_run, goes_on
from effectflow.runs.plan import replay_to_frontier
from effectflow.runs.stored_run import Place, read_run


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of a step as someone gives it.

    Attributes:
        step: the path of the step.
        outcome: returns the value that it yields or the error that it fails with, given its definition.
        is_failure: whether the step fails.
        by: who gives it.
    """

    step: str
    outcome: Callable[[StepDefinition], Any]
    is_failure: bool
    by: str

    @property
    def reason(self) -> str:
        """What was done, in words."""
        verb = "failed" if self.is_failure else "completed"
        return f"step {self.step!r} {verb} by {self.by}"


async def settle_step(
    place: Place, run_id: str, settlement: Settlement, *, effects: bool = False
) -> None:
    """Record the outcome of a step that has begun, and let the next worker continue the run.

    With `effects`, the replay that finds the step runs all effects between steps. The errors are those of
    `Workflow.complete_step`.
    """

    async def change(held: HeldRun) -> Change:
        resumed = Resumed(held.owner, held.now, by=settlement.by)
        found = await _reach(place, run_id, settlement.step, resumed, effects=effects)
        step, definition, turn = found.step, found.definition, found.order.last_turn + 1
        outcome = settlement.outcome(definition)
        if settlement.is_failure:
            end = _failed(place, step, definition, outcome, held.now, turn)
        else:
            output = saved_output(place, step, definition, outcome)
            end = Completed(step, output, 0.0, held.now, turn=turn)
        return goes_on(held, found.resumed, end, reason=settlement.reason)

    await change_run(place.checkpoints, run_id, change, clock=place.scope.clock)


async def settleable_step(
    place: Place, run_id: str, step: str, *, effects: bool = False
) -> StepDefinition:
    """Return the definition of a step whose outcome can be given. Change nothing.

    The errors are those of `Workflow.complete_step`.
    """
    found = await _reach(place, run_id, step, Resumed("", 0.0), effects=effects)
    return found.definition


@dataclass(frozen=True, slots=True)
class _OpenStep:
    """A step in progress, as the current version of the workflow has it.

    Attributes:
        step: its path.
        definition: its definition.
        order: the order of the run when it is continued.
        resumed: the entry that continues it, with what that leaves out.
    """

    step: str
    definition: StepDefinition
    order: Order
    resumed: Resumed


async def _reach(
    place: Place, run_id: str, step: str, resumed: Resumed, *, effects: bool
) -> _OpenStep:
    """Replay a run up to a step that is in progress, to continue it with this entry."""
    found = await read_run(place, run_id)
    if found is None:
        raise RunNotFound(run_id)
    step = found.path_now(step)
    reached = await replay_to_frontier(place, found, effects=effects, wanted={step})
    plan = reached.plan
    if plan.problem is not None:
        raise plan.problem
    entries = found.journal.entries
    resumed = replace(resumed, void=reached.void)
    resumed = found.continued_by(resumed, place.blueprint.definition)
    order = read_order((*entries, resumed), place.blueprint.removed(found.written.entries))
    if step in plan.retry and step in reached.steps:
        return _OpenStep(step, reached.steps[step], order, resumed)
    raise ChangeRejected(run_id, *_why_not(step, order, plan.retry, plan.reason))


def _why_not(step: str, order: Order, open_steps: tuple[str, ...], reason: str) -> tuple[str, str]:
    """Return why a step cannot be settled, and what to do."""
    listed = ", ".join(map(repr, open_steps))
    hint = (
        f"These steps are in progress: {listed}." if listed else "None of its steps is in progress."
    )
    if step not in order.begun:
        return f"no step {step!r} has begun", hint
    if step not in order.open:
        return (
            f"step {step!r} has ended, and what came of it stands",
            f"{hint} To change an outcome that the run has used, fork the run.",
        )
    if reason:
        return (
            f"step {step!r} cannot be reached without running effects: {reason}",
            "Pass effects=True to run the effects between steps, or settle the step around it.",
        )
    return f"step {step!r} is not in progress where a resume continues", hint


def error_from_text(definition: StepDefinition, name: str, message: str) -> Exception:
    """Return an error of the class that people name, made of a message.

    A class that the step declares may be named without its module. Raise ValueError for one that is
    neither declared nor built in, and for one that is made of other arguments.
    """
    declared = definition.types.errors
    try:
        kind = error_named(name, declared)
    except LookupError:
        short = {one.rpartition(".")[2]: kind for one, kind in declared.items()}
        if name not in short:
            known = ", ".join(declared) or "none"
            raise ValueError(
                f"{name!r} is not built in, and step {definition.name!r} does not declare it; "
                f"it declares: {known}"
            ) from None
        kind = short[name]
    try:
        return kind(message) if message else kind()
    except TypeError as error:
        raise ValueError(
            f"a {kind.__name__} cannot be made of a message: {error}. Use fail_step in Python"
        ) from error


def saved_output(place: Place, step: str, definition: StepDefinition, value: Any) -> Any:
    """Return a value in the saved form of the output of a step.

    Raise NotSerializable for one that is not as the step declares, or cannot be saved.
    """
    mismatch = mismatch_of(value, definition.output)
    if mismatch is not None:
        hint = "Give a value of the type that the step declares"
        raise NotSerializable(f"{step}: ${mismatch[0]}", f"{mismatch[1]}. {hint}")
    return to_tree(value, path=f"{step}: $", types=place.checkpoints.known(definition.types))


def _failed(
    place: Place, step: str, definition: StepDefinition, error: Any, at: float, turn: int
) -> Failed:
    types = place.checkpoints.known(definition.types)
    declared = tuple(types.errors.values())
    if declared and not isinstance(error, declared):
        names = ", ".join(kind.__name__ for kind in declared)
        raise NotSerializable(step, f"it fails with {names}, not with {type(error).__name__}")
    record = write_error(error, types, is_defect=False)
    # It raises NotSerializable for an error that the step does not declare.
    again = read_error(record, step, types)
    if not is_exact(error, record, again, types):
        raise NotSerializable(step, f"its failure {error!r} would come back as {again!r}")
    return Failed(step, record, False, at, turn=turn)
