"""`effectflow fork`: make a run from the beginning of another one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from effectflow.checkpoint import read_checkpoint
from effectflow.checkpoint.step import StepDefinition
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import workflow_of_run
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ByOption, EffectsOption, LatestOption, read_json
from effectflow.cli.settle import value_of
from effectflow.cli.suggestions import suggested
from effectflow.effects.clock import SystemClock
from effectflow.effects.scope import Scope
from effectflow.runs.blueprint import KEPT
from effectflow.runs.control import asker
from effectflow.runs.forking import Fork, fork_run
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.stored_run import Place


@command(CodeOption, latest=LatestOption)
async def fork(
    access: Access,
    run_id: str,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="N|STEP",
            help="The number of the last entry that counts, as `history` shows it; or the path of a "
            "step, which is executed again.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP=JSON", help="Another output of a completed step. Repeat it for several."
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Begin anew with this input: JSON, or @FILE."),
    ] = None,
    new_run_id: Annotated[
        str | None, typer.Option("--run-id", help="The id of the new run.")
    ] = None,
    by: ByOption = None,
    effects: EffectsOption = False,
) -> Answer:
    """Make a new run from the beginning of another one, which stays as it is.

    What the other run has recorded up to there counts, and nothing of it is executed again. Without
    --at, --change and --input, the new run begins anew with the same input. The next worker drives it, or
    `effectflow resume` does.
    """
    if input is not None and (at is not None or change):
        raise BadUse("with --input, the new run begins anew: leave out --at and --change")
    try:
        check_new_run_id(new_run_id)
    except ValueError as error:
        raise BadUse(f"--run-id: {error}") from error
    changes = dict(_change_of(one) for one in change or ())
    known = await read_checkpoint(access.store, run_id, access.seal)
    loaded = workflow_of_run(run_id, known.workflow, access.app, known.module)
    given = KEPT
    if input is not None:
        # Imported late, because pydantic takes longer than most commands.
        from effectflow.service.structured_input import input_of

        try:
            given = input_of(loaded.workflow, read_json(input, "input"), access.checkpoints)
        except ValueError as error:
            raise BadUse(str(error)) from error

    def read(definition: StepDefinition, data: Any) -> Any:
        return value_of(definition, data, access)

    place_at = int(at) if at is not None and at.isdecimal() else at
    wanted = Fork(by or asker(), place_at, changes, given, new_run_id, effects, read)
    async with loaded.opened_environment(access.checkpoints) as env:
        place = Place.of(loaded.workflow.blueprint, access.checkpoints, env, Scope(SystemClock()))
        made = await fork_run(place, run_id, wanted)
    resume = suggested("resume", made, module=known.module)
    return Answer(
        {"run_id": made, "forked_from": run_id, "by": wanted.by},
        [
            f"Run {made} was made from run {run_id}.",
            f"The next worker drives it. Without workers, this does: {resume}",
        ],
    )


def _change_of(text: str) -> tuple[str, Any]:
    """Return the step and the value of `STEP=JSON`. The keys of steps may have `=`, JSON text too."""
    for at in [at for at, character in enumerate(text) if character == "="]:
        step, value = text[:at], text[at + 1 :]
        # A key of a parallel operator is in brackets.
        if step and step.count("[") == step.count("]"):
            return step, read_json(value, "value")
    raise BadUse(f"--change takes STEP=JSON, not {text!r}")
