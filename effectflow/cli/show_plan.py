"""`effectflow plan`: what a resume of a run would do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from returns.result import Failure

from effectflow.checkpoint import ResumePlan, plan_resume, read_checkpoint
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import app_hint, is_demo, workflow_of_run
from effectflow.cli.command import Answer, command
from effectflow.cli.options import ExitCode, LatestResumableOption
from effectflow.cli.render import counted, fields_of
from effectflow.cli.suggestions import message_of


@command(CodeOption, latest=LatestResumableOption)
async def plan(
    access: Access,
    run_id: str,
    effects: Annotated[
        bool, typer.Option("--effects", help="Run the effects between steps, too.")
    ] = False,
) -> Answer:
    """Show what a resume of a run would do, without doing it. Exit with 4 if it would be rejected."""
    checkpoint = await read_checkpoint(access.store, run_id, access.seal)
    name, module, hint = checkpoint.workflow, checkpoint.module, ""
    if access.app is None and not is_demo(name, module):
        made, hint = plan_resume(checkpoint), app_hint(module)
    else:
        loaded = workflow_of_run(run_id, name, access.app, module)
        async with loaded.opened_environment(access.checkpoints) as env:
            planned = await loaded.workflow.plan(run_id, effects=effects).run(env)
        # Not raised through the environment, which might wrap it.
        if isinstance(planned, Failure):
            raise planned.failure()
        made = planned.unwrap()
    return Answer(
        {"run_id": run_id, **fields_of(made)},
        plan_lines(made, name, hint),
        code=ExitCode.DONE if made.problem is None else ExitCode.CHECKPOINT_ERROR,
    )


def plan_lines(plan: ResumePlan, workflow_name: str, app_hint: str) -> Iterable[str]:
    """Yield what a resume would do, one line for each step.

    Parameters:
        app_hint: the option to add, if the plan was made without the code; otherwise "".
    """
    yield f"skip: {counted(len(plan.skip), 'completed step')}"
    if plan.is_complete:
        yield "start: nothing; the run is complete, and a resume returns its recorded output"
        return
    for step in plan.start:
        yield f"start: {step}{_again(step, plan)}"
    for step in plan.waiting:
        yield f"wait: {step}"
    for step in plan.recurs:
        yield recurrence(step)
    for unverified in plan.unverified:
        yield f"unverified: {unverified.step} ({unverified.reason})"
    if plan.problem is not None:
        yield f"problem: {message_of(plan.problem)}"
    if plan.reason and app_hint:
        yield f"start: unknown; only the code of {workflow_name} can tell: {app_hint}"
    elif plan.reason:
        yield f"start: unknown, as {plan.reason}; to run the effects between steps, add --effects"
    elif not (plan.start or plan.waiting or plan.recurs or plan.problem):
        yield "start: no step is reached"


def _again(step: str, plan: ResumePlan) -> str:
    """Return whether a step has begun before, and whether a resume continues inside it."""
    if step not in plan.retry:
        return ""
    within = sum(done.startswith(f"{step}/") for done in plan.skip)
    return f" (again, after {counted(within, 'completed step')} inside)" if within else " (again)"


def recurrence(step: str) -> str:
    """Return that a resume fails again with the recorded failure of this step, and what to do."""
    return (
        f"fails again: {step}; the run ends with its recorded failure, which a resume does not retry. "
        "To try again, start a new run with another id"
    )
