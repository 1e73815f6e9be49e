"""The commands that drive runs: demo, run and resume."""

from __future__ import annotations

import dataclasses
import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from returns.result import Success

from effectflow import attempt
from effectflow.builders.kinds import job_progress
from effectflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    HasCheckpoints,
    RunInfo,
    RunQuery,
    RunStatus,
    find_run,
    read_checkpoint,
)
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import (
    LoadedWorkflow,
    demo_workflow,
    find_app,
    load_workflow,
    workflow_named,
    workflow_names,
    workflow_of_run,
)
from effectflow.cli.census import CensusJob, census
from effectflow.cli.command import Answer, command
from effectflow.cli.drive import RunToDrive, drive, drive_all
from effectflow.cli.options import (
    BadUse,
    ExitCode,
    LatestResumableOption,
    RunArgument,
    check_choice,
    read_json,
)
from effectflow.cli.render import counted, when
from effectflow.cli.suggestions import suggest_code, suggested
from effectflow.effects.nodes import AnyEffect
from effectflow.runs.run_ids import check_new_run_id, new_run_id
from effectflow.service import Client


@command(None)
def demo(
    access: Access,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="A folder with Python files; by default the standard library."
        ),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="The path of the reports, without .txt and .json.")
    ] = Path("effectflow-report"),
    limit: Annotated[int, typer.Option(min=1, help="Measure at most this many files at once.")] = 2
    * (os.cpu_count() or 1),
    run_id: Annotated[str | None, typer.Option(metavar="RUN_ID", help="The id of the run.")] = None,
) -> Answer:
    """Take a census of Python source files, durably. Kill it at any moment, then resume it."""
    chosen = (folder or Path(dataclasses.__file__).parent).resolve()
    if not chosen.is_dir():
        raise BadUse(f"{chosen} is not a folder")
    reports = report.resolve().parent
    if not (reports.is_dir() and os.access(reports, os.W_OK)):
        raise BadUse(f"reports cannot be written to {reports}: name another path with --report")
    run_id = _run_id_or_new(run_id, census.name)
    job = CensusJob(str(chosen), str(report.resolve()), limit)
    way_on = f"If it is killed, continue it with:\n  {suggested('resume', run_id)}"
    title = f"Run {run_id}: Python files below {chosen}. {way_on}"
    start = census.start(job, run_id=run_id)
    return drive(RunToDrive(run_id, demo_workflow(), access, start, title))


@command(CodeOption)
def run(
    access: Access,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKFLOW", help="Module and workflow; with --app, the workflow's name."
        ),
    ],
    input: Annotated[str, typer.Option("--input", help="The input: JSON, or @FILE.")] = "null",
    run_id: Annotated[str | None, typer.Option(metavar="RUN_ID", help="The id of the run.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not drive the run: leave it to a worker.")
    ] = False,
) -> Answer:
    """Run a workflow on an input. Given the id of a run with the same input, continue that run."""
    if detach and (access.app is None or find_app(access.app) is None):
        raise BadUse(
            "--detach leaves the run to the workers of an App: name it with --app MODULE:APP"
        )
    if access.app is None:
        loaded = load_workflow(workflow)
        suggest_code(workflow)
    else:
        loaded = workflow_named(workflow, access.app)
    # Imported late, because pydantic takes longer than most commands.
    from effectflow.service.structured_input import input_of

    data = read_json(input, "input")
    run_id = _run_id_or_new(run_id, loaded.workflow.name)

    def structured(env: HasCheckpoints) -> Any:
        try:
            return input_of(loaded.workflow, data, env.checkpoints)
        except ValueError as error:
            way_out = ": give one with --input" if data is None else ""
            raise BadUse(f"{error}{way_out}") from error

    # Not earlier, because the environment may add codecs.
    given = attempt(structured, BadUse)
    if detach:
        return anyio.run(_submit, access, loaded, given, run_id)
    start = given.and_then(lambda value: loaded.to_start.start(value, run_id=run_id))
    return drive(RunToDrive(run_id, loaded, access, start))


async def _submit(access: Access, loaded: LoadedWorkflow, given: AnyEffect, run_id: str) -> Answer:
    """Make a run of this input durable, for a worker to drive."""
    async with loaded.opened_environment(access.checkpoints) as env:
        input = await given.run(env)
        # Not raised through the environment, which might wrap it.
        if isinstance(input, Success):
            async with Client(env.checkpoints) as client:
                handle = await client.submit(loaded.to_start, input.unwrap(), run_id=run_id)
                app = loaded.found_at if access.origin == "APP" else ""
                return _submitted(run_id, await handle.status(), app)
    raise input.failure()


def _submitted(run_id: str, status: RunStatus, app: str) -> Answer:
    """Return what happens to a run that was submitted, or had been before.

    `app` is the App whose workers drive it; "" if it is in another store.
    """
    code, shown, resume = ExitCode.DONE, str(status), suggested("resume", run_id)
    match status:
        case RunStatus.COMPLETED | RunStatus.CANCELLED:
            lines = [f"Run {run_id} is {status}: {suggested('show', run_id)}"]
        case RunStatus.FAILED:
            code = ExitCode.WORKFLOW_FAILED
            lines = [
                f"Run {run_id} has failed: workers do not continue it; resume it with: {resume}"
            ]
        case _:
            shown = "submitted"
            lines = [
                f"Run {run_id} is submitted. A worker "
                + (f"drives it: effectflow worker {app}" if app else "of this store drives it."),
                f"Without workers, this drives it: {resume}",
            ]
    return Answer({"run_id": run_id, "status": shown}, lines, code=code, is_on_one_line=True)


@command(CodeOption)
def resume(
    access: Access,
    run_id: RunArgument = None,
    latest: LatestResumableOption = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Resume all runs that can be resumed, oldest first, and leave those that wait; with "
            "--app MODULE:WORKFLOW or MODULE:APP, those of its workflows.",
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Resume the run in this file: the checkpoint.json of a FileStore, where the run stays, "
            "an export of one run, or what Checkpoint.to_json or to_binary returned.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Continue even if the workflow changed, or the outcome of a step is unknown (the step "
            "is executed again).",
        ),
    ] = False,
) -> Answer:
    """Continue a run from where it stopped. Completed steps are skipped."""
    check_choice(run_id=run_id, latest=latest, all=every, checkpoint=checkpoint)
    if checkpoint is not None:
        # Imported late, because other resumes do not need it.
        from effectflow.cli.checkpoint_file import adopt

        access, run_id = adopt(access, checkpoint)

    def to_drive(info: RunInfo) -> RunToDrive:
        run_id, module, title = info.run_id, "", ""
        try:
            found = access.use(lambda store: read_checkpoint(store, run_id, access.seal))
            module, title = found.module, _standing(found)
        except CheckpointError:
            # With --app, the resume itself says what is wrong with the run.
            if access.app is None:
                raise
        loaded = workflow_of_run(run_id, info.summary.workflow, access.app, module)
        effect = loaded.workflow.resume(run_id, force=force)
        return RunToDrive(run_id, loaded, access, effect, title)

    if every:
        runs = [(info.run_id, partial(to_drive, info)) for info in _resumable_runs(access)]
        return drive_all(runs, as_json=access.as_json)

    async def find(store: CheckpointStore) -> RunInfo:
        chosen = await access.chosen(run_id, latest, resumable=True)
        info = await find_run(store, chosen)
        if info is None:
            raise await run_not_found(store, chosen)
        return info

    return drive(to_drive(access.use(find)))


def _standing(checkpoint: Checkpoint) -> str:
    """Return how far a run has got, and when; "" if it has ended."""
    if checkpoint.status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        return ""
    job = job_progress(checkpoint)
    parts = [f"{counted(len(checkpoint.completed_steps), 'step')} completed"]
    parts += [] if job is None else [str(job)]
    return (
        f"Run {checkpoint.run_id} continues from its checkpoint of {when(checkpoint.updated_at)}: "
        f"{', '.join(parts)}."
    )


def _resumable_runs(access: Access) -> list[RunInfo]:
    """Return the runs that `resume --all` continues, oldest first."""
    names = None if access.app is None else workflow_names(access.app)
    runs = access.use(lambda store: store.find(RunQuery(resumable=True, limit=None)))
    return [
        info
        for info in reversed(runs)
        if (names is None or info.summary.workflow in names) and not _only_waits(info)
    ]


def _only_waits(info: RunInfo) -> bool:
    """Return whether a run only waits for something, as a resume of it would."""
    summary = info.summary
    if summary.status not in (RunStatus.PENDING, RunStatus.SUSPENDED):
        return False
    return summary.due_at is None or summary.due_at > time.time()


def _run_id_or_new(run_id: str | None, workflow_name: str) -> str:
    try:
        check_new_run_id(run_id)
    except ValueError as problem:
        raise BadUse(f"--run-id: {problem}") from problem
    return new_run_id(workflow_name) if run_id is None else run_id
