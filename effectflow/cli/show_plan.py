"""`effectflow plan`: what a resume of a run would do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from returns.result import Failure

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    ResumePlan,
    plan_resume,
    read_checkpoint,
)
from effectflow.checkpoint.values import Tree
from effectflow.cli.access import Access, to_code, with_access
from effectflow.cli.app_loader import app_hint, is_demo, workflow_of_run
from effectflow.cli.options import ExitCode, JsonOption, LatestResumableOption, RunArgument
from effectflow.cli.render import counted, print_json, say_lines
from effectflow.cli.suggestions import message_of


@with_access(to_code)
def plan(
    run_id: RunArgument = None,
    latest: LatestResumableOption = False,
    effects: Annotated[
        bool, typer.Option("--effects", help="Run the effects between steps, too.")
    ] = False,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Show what a resume of a run would do, without doing it. Exit with 4 if it would be rejected."""

    async def make(opened: CheckpointStore, chosen: str) -> tuple[Checkpoint, ResumePlan, str]:
        checkpoint = await read_checkpoint(opened, chosen, access.seal)
        name, module = checkpoint.workflow, checkpoint.module
        if access.app is None and not is_demo(name, module):
            return checkpoint, plan_resume(checkpoint), app_hint(module)
        loaded = workflow_of_run(chosen, name, access.app, module)
        async with loaded.opened_environment(access.checkpoints) as env:
            made = await loaded.workflow.plan(chosen, effects=effects).run(env)
        # Not raised through the environment, which might wrap it.
        if isinstance(made, Failure):
            raise made.failure()
        return checkpoint, made.unwrap(), ""

    checkpoint, made, hint = access.use_run(run_id, latest, make, resumable=True)
    if as_json:
        print_json({"run_id": checkpoint.run_id, **_plan_tree(made)})
    else:
        say_lines(plan_lines(made, checkpoint.workflow, hint))
    if made.problem is not None:
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def _plan_tree(plan: ResumePlan) -> dict[str, Tree]:
    """Return a plan as plain data."""
    return {
        "start": [*plan.start],
        "retry": [*plan.retry],
        "skip": [*plan.skip],
        "recurs": [*plan.recurs],
        "waiting": [*plan.waiting],
        "unverified": [{"step": one.step, "reason": one.reason} for one in plan.unverified],
        "problem": None if plan.problem is None else message_of(plan.problem),
        "is_complete": plan.is_complete,
        "reason": plan.reason,
    }


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
