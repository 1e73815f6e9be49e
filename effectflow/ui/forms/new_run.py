"""What a form asks of a new run: its id and its input."""

from __future__ import annotations

from typing import Any, Union, cast

from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Started
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.machines import StateMachine
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.stored_run import input_of
from effectflow.service.environment import AnyWorkflow
from effectflow.ui.forms.describing import described
from effectflow.ui.forms.field import Field
from effectflow.ui.forms.reading import Mistyped


def checked_id(run_id: str) -> str:
    """Return the id that was typed in the field `run_id`. Raise Mistyped if no new run may have it."""
    try:
        check_new_run_id(run_id)
    except ValueError as error:
        raise Mistyped({"run_id": str(error)}) from None
    return run_id


def input_field(workflow: AnyWorkflow) -> Field:
    """Return the field of the input of a workflow; for a state machine, of the state to begin in."""
    annotation = workflow.blueprint.input_type
    if isinstance(workflow, StateMachine):
        machine = cast("StateMachine[Any, Any, Any]", workflow)
        kinds = (*machine.state_types, None)
        annotation = Union[kinds]  # noqa: UP007, any number of them
        hint = "the state to begin in; by default, the initial one"
        return described(annotation, name="input", label="Input", hint=hint)
    return described(annotation, name="input", label="Input")


def made_input(workflow: AnyWorkflow, value: Any) -> Any:
    """Return the input that a form asked for. Raise Mistyped if the workflow rejects it."""
    if value is None or not isinstance(workflow, StateMachine):
        return value
    try:
        return cast("StateMachine[Any, Any, Any]", workflow).begin(value).initial
    except ValueError as error:
        raise Mistyped({"input": str(error)}) from None


def recorded_input(workflow: AnyWorkflow, started: Started, checkpoints: Checkpoints) -> Any:
    """Return the input of a run that began with this entry, as the workflow takes it now.

    Raise CorruptCheckpoint if it takes others, or if a migration of it raises.
    """
    blueprint = workflow.blueprint.saved_by(checkpoints)
    try:
        upgraded = blueprint.upgraded((started,))
    except (Exception, SystemExit) as error:
        reason = f"a migration of its input raises {type(error).__name__}: {error}"
        raise CorruptCheckpoint(started.run_id, reason, is_damaged=False) from error
    return input_of(fold(upgraded, started.run_id), blueprint)
