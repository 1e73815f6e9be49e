"""`effectflow complete-step` and `fail-step`: give the outcome of a step by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from effectflow.checkpoint import read_checkpoint
from effectflow.checkpoint.step import StepDefinition
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import workflow_of_run
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ByOption, EffectsOption, read_json
from effectflow.cli.suggestions import suggested
from effectflow.effects.clock import SystemClock
from effectflow.effects.scope import Scope
from effectflow.runs.control import asker
from effectflow.runs.settling import Settlement, error_from_text, settle_step
from effectflow.runs.stored_run import Place

_RunArgument = Annotated[str, typer.Argument(metavar="RUN_ID", help="The id of the run.")]
_StepArgument = Annotated[
    str, typer.Argument(metavar="STEP", help="The path of the step, as `history` shows it.")
]


@command(CodeOption)
async def complete_step(
    access: Access,
    run_id: _RunArgument,
    step: _StepArgument,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value: JSON, or @FILE.")],
    by: ByOption = None,
    effects: EffectsOption = False,
) -> Answer:
    """Record that a step of a run has completed with a value, without executing it.

    The step has begun, and its outcome is unknown, or it cannot succeed. The value is checked against the
    declared type of the step. The next worker continues the run, or `effectflow resume` does.
    """
    data = read_json(value, "value")
    given = Settlement(
        step, lambda definition: value_of(definition, data, access), False, by or asker()
    )
    return await _settle(access, run_id, given, effects)


@command(CodeOption)
async def fail_step(
    access: Access,
    run_id: _RunArgument,
    step: _StepArgument,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The message of the error.")
    ] = "",
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="NAME",
            help="The class of the error, if the step declares several. By default the one that it "
            "declares, or RuntimeError if it declares none.",
        ),
    ] = None,
    by: ByOption = None,
    effects: EffectsOption = False,
) -> Answer:
    """Record that a step of a run has failed with an error, without executing it again.

    The code of the workflow handles the failure, and its compensations run. The next worker continues the
    run, or `effectflow resume` does.
    """
    error = _error_of(kind, message)
    return await _settle(access, run_id, Settlement(step, error, True, by or asker()), effects)


async def _settle(access: Access, run_id: str, given: Settlement, effects: bool) -> Answer:
    known = await read_checkpoint(access.store, run_id, access.seal)
    loaded = workflow_of_run(run_id, known.workflow, access.app, known.module)
    async with loaded.opened_environment(access.checkpoints) as env:
        place = Place.of(loaded.workflow.blueprint, access.checkpoints, env, Scope(SystemClock()))
        await settle_step(place, run_id, given, effects=effects)
    resume = suggested("resume", run_id, module=known.module)
    return Answer(
        {"run_id": run_id, "step": given.step, "by": given.by},
        [
            f"Run {run_id}: {given.reason}.",
            f"The next worker continues the run. Without workers, this does: {resume}",
        ],
    )


def value_of(definition: StepDefinition, data: object, access: Access) -> Any:
    """Return the output of a step that plain data describes. Raise BadUse if it does not fit."""
    # Imported late, because pydantic takes longer than most commands.
    from effectflow.service.structured_input import structure_as

    options = access.checkpoints.value_options
    try:
        return structure_as(definition.output, data, options, what="the value")
    except ValueError as error:
        raise BadUse(f"step {definition.name!r}: {error}") from error


def _error_of(kind: str | None, message: str) -> Callable[[StepDefinition], Exception]:
    def make(definition: StepDefinition) -> Exception:
        declared = definition.types.errors
        if kind is None and len(declared) > 1:
            known = ", ".join(declared)
            raise BadUse(f"--type says which error; step {definition.name!r} declares: {known}")
        name = kind or next(iter(declared), "RuntimeError")
        try:
            return error_from_text(definition, name, message)
        except ValueError as error:
            raise BadUse(str(error)) from error

    return make
