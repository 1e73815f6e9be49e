"""The commands that drive runs: demo, run and resume."""

from __future__ import annotations

import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

import anyio
import orjson
import typer
from returns.result import Failure, Result
from rich.console import Console

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    HasCheckpoints,
    ResumePlan,
    RunBusy,
    RunCancelled,
    RunConflict,
    RunInfo,
    RunQuery,
    RunStatus,
    read_checkpoint,
)
from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.journal_reader import read_existing, run_not_found
from effectflow.checkpoint.values import plain_tree, to_tree
from effectflow.cli.access import Access, to_code, to_store, with_access
from effectflow.cli.app_loader import (
    LoadedWorkflow,
    demo_workflow,
    load_workflow,
    workflow_named,
    workflow_names,
    workflow_of_run,
)
from effectflow.cli.census import CensusJob, census
from effectflow.cli.options import (
    BadUse,
    ExitCode,
    JsonOption,
    LatestResumableOption,
    RunArgument,
    check_choice,
    read_json,
)
from effectflow.cli.render import counted, print_json, say
from effectflow.cli.run_progress import RunProgress
from effectflow.cli.show_plan import recurrence
from effectflow.cli.suggestions import message_of, suggest_code, suggested
from effectflow.effects.nodes import AnyEffect
from effectflow.machines import Machine
from effectflow.mapreduce import JobResult, TooManyFailures
from effectflow.runs.run_ids import check_new_run_id, new_run_id
from effectflow.service import StoppedBySignal, run_until_signal
from effectflow.service.environment import AnyWorkflow, BadEnvironment


@with_access(to_store)
def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder with Python files; by default the standard library."),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="The path of the reports, without .txt and .json.")
    ] = Path("effectflow-report"),
    limit: Annotated[int, typer.Option(min=1, help="Measure at most this many files at once.")] = 2
    * (os.cpu_count() or 1),
    run_id: Annotated[str | None, typer.Option(help="The id of the run.")] = None,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Take a census of Python source files, durably. Kill it at any moment, then resume it."""
    chosen = (folder or Path(dataclasses.__file__).parent).resolve()
    if not chosen.is_dir():
        raise BadUse(f"{chosen} is not a folder")
    run_id = _run_id_or_new(run_id, census.name)
    job = CensusJob(str(chosen), str(report.resolve()), limit)

    def start(_: object) -> AnyEffect:
        return census.start(job, run_id=run_id)

    way_on = f"If it is killed, continue it with:\n  {suggested('resume', run_id)}"
    title = f"Run {run_id}: Python files below {chosen}. {way_on}"
    drive(DriveRequest(demo_workflow(), start, run_id, access, title=title, as_json=as_json))


@with_access(to_code)
def run(
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKFLOW", help="Module and workflow; with --app, the workflow's name."
        ),
    ],
    input: Annotated[str, typer.Option("--input", help="The input: JSON, or @FILE.")] = "null",
    run_id: Annotated[str | None, typer.Option(help="The id of the run.")] = None,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on an input. Given the id of a run with the same input, continue that run."""
    if access.app is None:
        loaded = load_workflow(workflow)
        suggest_code(workflow)
    else:
        loaded = workflow_named(workflow, access.app)
    # Imported late, because pydantic takes longer than most commands.
    from effectflow.cli.structured_input import input_of

    data = read_json(input, "input")
    run_id = _run_id_or_new(run_id, loaded.workflow.name)

    def start(env: HasCheckpoints) -> AnyEffect:
        try:
            # Not earlier, because the environment may add codecs.
            value = input_of(loaded.workflow, data, env.checkpoints)
        except ValueError as error:
            way_out = ": give one with --input" if data is None else ""
            raise BadUse(f"{error}{way_out}") from error
        return loaded.to_start.start(value, run_id=run_id)

    drive(DriveRequest(loaded, start, run_id, access, as_json=as_json))


@with_access(to_code)
def resume(
    run_id: RunArgument = None,
    latest: LatestResumableOption = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Resume all runs that can be resumed, oldest first, except those that wait; with --app "
            "MODULE:WORKFLOW or MODULE:APP, those of its workflows.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            help="Continue even if the workflow changed, or the outcome of a step is unknown (the step "
            "is executed again)."
        ),
    ] = False,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Continue a run from where it stopped. Completed steps are skipped."""
    check_choice(run_id=run_id, latest=latest, all=every)

    def request_of(info: RunInfo) -> DriveRequest:
        async def module(opened: CheckpointStore) -> str:
            return (await read_checkpoint(opened, info.run_id, access.seal, at=1)).module

        # With --app, the command need not read the run.
        hint = access.use(module) if access.app is None else ""
        loaded = workflow_of_run(info.run_id, info.summary.workflow, access.app, hint)

        def resume(_: object) -> AnyEffect:
            return loaded.workflow.resume(info.run_id, force=force)

        return DriveRequest(loaded, resume, info.run_id, access, as_json=as_json)

    if every:
        _drive_all(_resumable_runs(access), request_of, as_json=as_json)
    drive(request_of(access.use_run(run_id, latest, _info_of, resumable=True)))


async def _info_of(store: CheckpointStore, run_id: str) -> RunInfo:
    info = await store.info(run_id)
    if info is None:
        raise await run_not_found(store, run_id)
    return info


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


@dataclass(frozen=True, slots=True)
class DriveRequest:
    """A run to drive: its workflow, the function that makes the effect that drives it, and its store.

    `effect` is called with the environment. It raises BadUse for an input that does not fit.
    """

    loaded: LoadedWorkflow
    effect: Callable[[HasCheckpoints], AnyEffect]
    run_id: str
    access: Access
    title: str | None = None
    as_json: bool = False

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return suggested("resume", self.run_id)


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended in this process.

    Attributes:
        recurs: the steps whose recorded failures end each resume of the run again.
    """

    status: Literal[
        "completed", "failed", "cancelled", "interrupted", "refused", "checkpoint error"
    ]
    message: str | None = None
    output: object = None
    has_dead_letters: bool = False
    recurs: tuple[str, ...] = ()

    @property
    def can_be_resumed(self) -> bool:
        return self.status in ("interrupted", "failed") and not self.recurs


_EXIT_CODES = {
    "completed": ExitCode.DONE,
    "failed": ExitCode.WORKFLOW_FAILED,
    "cancelled": ExitCode.WORKFLOW_FAILED,
    "interrupted": ExitCode.INTERRUPTED,
    "refused": ExitCode.CHECKPOINT_ERROR,
    "checkpoint error": ExitCode.CHECKPOINT_ERROR,
}


def drive(request: DriveRequest) -> NoReturn:
    """Drive a run to its end, or until a signal; report it, and exit."""
    progress, end = _driven(request)
    if request.as_json:
        print_json(_answer(request, progress, end), on_one_line=True)
    else:
        _report(request, progress, end)
    raise typer.Exit(_EXIT_CODES[end.status])


def _drive_all(
    runs: Sequence[RunInfo], request_of: Callable[[RunInfo], DriveRequest], *, as_json: bool
) -> NoReturn:
    """Drive these runs one after another, until a signal; report each, and exit."""
    codes: set[ExitCode] = set()
    answers: list[object] = []
    for run in runs:
        try:
            request = request_of(run)
            progress, end = _driven(request)
        except (BadUse, BadEnvironment, CheckpointError) as error:
            is_bad_use = not isinstance(error, CheckpointError)
            codes.add(ExitCode.BAD_USE if is_bad_use else ExitCode.CHECKPOINT_ERROR)
            answers.append(
                {"run_id": run.run_id, "status": "not resumed", "message": message_of(error)}
            )
            say(f"effectflow: {message_of(error)}", Console(stderr=True))
            continue
        codes.add(_EXIT_CODES[end.status])
        answers.append(_answer(request, progress, end))
        if not as_json:
            _report(request, progress, end)
        if end.status == "interrupted":
            break
    if as_json:
        print_json(answers)
    elif not runs:
        say("No run can be resumed.")
    worst_first = (
        ExitCode.INTERRUPTED,
        ExitCode.CHECKPOINT_ERROR,
        ExitCode.WORKFLOW_FAILED,
        ExitCode.BAD_USE,
    )
    raise typer.Exit(next((code for code in worst_first if code in codes), ExitCode.DONE))


def _driven(request: DriveRequest) -> tuple[RunProgress, _End]:
    """Drive a run to its end, or until a signal. Raise BadEnvironment before the run is touched."""
    errors = Console(stderr=True)
    progress = RunProgress(Console(stderr=request.as_json), request.loaded.workflow, request.run_id)
    ends: list[_End | BadUse] = []
    try:
        anyio.run(_perform, request, progress, ends)
    except BadEnvironment as error:
        if error.__cause__ is not None:
            say("".join(traceback.format_exception(error.__cause__)).rstrip(), errors)
        raise
    except Exception:
        say(traceback.format_exc().rstrip(), errors)
        if not ends:
            return progress, _End("failed", "The workflow ended in a defect, shown above.")
        say("The environment failed to close, as shown above. The run had ended before.", errors)
    if isinstance(ends[0], BadUse):
        raise ends[0]
    return progress, ends[0]


async def _perform(request: DriveRequest, progress: RunProgress, ends: list[_End | BadUse]) -> None:
    """Drive a run. Append how it ended to `ends` before the environment closes, which may fail."""
    known = request.access.checkpoints
    checkpoints = dataclasses.replace(known, observers=(*known.observers, progress))
    # A signal cancels only the run, so that the environment can close in an orderly way.
    async with request.loaded.opened_environment(checkpoints) as env:
        try:
            effect = request.effect(env)
        except BadUse as refused:
            # Not raised through the environment, which might wrap it.
            ends.append(refused)
            return
        if request.title and not request.as_json:
            say(request.title, progress.console)
        with progress.bar:
            ends.append(await _end_of(request, effect, env, progress))


async def _end_of(
    request: DriveRequest, effect: AnyEffect, env: HasCheckpoints, progress: RunProgress
) -> _End:
    def stopping(signal_name: str) -> None:
        say(
            f"Stopping after {signal_name}. A second signal ends the process at once.",
            progress.console,
        )

    try:
        result: Result[Any, Any] = await run_until_signal(
            lambda: effect.run(env), on_signal=stopping
        )
    except StoppedBySignal as stop:
        return _End("interrupted", f"Interrupted by {stop.signal_name}.")
    except CheckpointError as error:
        return _unable(error)
    except Exception as defect:
        return await _failed(request, env, progress, defect, traceback.format_exc().rstrip())
    match result:
        case Failure(CheckpointError() as error):
            return _unable(error)
        case Failure(error):
            return await _failed(request, env, progress, error)
        case _:
            output = result.unwrap()
            if not (progress.begun or progress.skipped):
                # The run may have been complete. Then it was not replayed.
                progress.skipped = len((await _plan_of(request, env)).skip)
            return _End("completed", output=output, has_dead_letters=_has_dead_letters(output))


def _unable(error: CheckpointError) -> _End:
    """Return the end of a run that could not be driven further."""
    match error:
        case RunCancelled():
            status = "cancelled"
        case RunBusy() | RunConflict():
            # Another one has the run or its id, and nothing is wrong with the checkpoint.
            status = "refused"
        case _:
            status = "checkpoint error"
    return _End(status, message_of(error))


async def _failed(
    request: DriveRequest,
    env: HasCheckpoints,
    progress: RunProgress,
    error: object,
    origin: str | None = None,
) -> _End:
    """Return the end of a failed run. `origin` is the traceback of a defect, which this shows."""
    recurs = await _recurring(request, env)
    text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    if recurs and not progress.begun:
        message = f"Nothing was executed. The recorded failure is {text}"
    elif origin is not None:
        say(origin, Console(stderr=True))
        message = "The workflow ended in a defect, shown above."
    else:
        message = f"The workflow failed: {text}"
    has_dead_letters = isinstance(error, TooManyFailures)
    return _End("failed", message, has_dead_letters=has_dead_letters, recurs=recurs)


async def _recurring(request: DriveRequest, env: HasCheckpoints) -> tuple[str, ...]:
    """Return the steps whose recorded failures end each resume of the run again, as its plan does."""
    try:
        async with env.checkpoints.store as store:
            entries = await read_existing(store, request.run_id, env.checkpoints.seal)
            # A plan replays the body, so it is made only if it can find such a failure.
            finished = fold(entries, request.run_id).finished
            if finished is None or finished.retry:
                return ()
            plan = await _plan_of(request, env)
    except Exception:
        # The command has already reported why the run ended. This would only add what to do.
        return ()
    return () if plan.start or plan.waiting else plan.recurs


async def _plan_of(request: DriveRequest, env: HasCheckpoints) -> ResumePlan:
    """Return what a resume of the run would do; an empty plan if the run is gone."""
    planned: Result[ResumePlan, Any] = await request.loaded.workflow.plan(request.run_id).run(env)
    return planned.value_or(ResumePlan())


def _has_dead_letters(output: object) -> bool:
    return isinstance(output, JobResult) and bool(
        cast("JobResult[Any, Any, Any]", output).dead_letters
    )


def _report(request: DriveRequest, progress: RunProgress, end: _End) -> None:
    console = progress.console
    if end.message is not None:
        say(end.message, console)
    counts = f"{counted(progress.completed, 'step')} run, {progress.skipped} skipped (done before)"
    say(f"Run {request.run_id}: {end.status}; {counts}.", console)
    if end.output is not None:
        many = isinstance(end.output, list)
        for line in cast("list[object]", end.output) if many else [end.output]:
            say(str(line), console)
    if end.has_dead_letters:
        say(
            "Some items failed and were set aside. See them with: "
            + suggested("dead-letters", request.run_id),
            console,
        )
    for step in end.recurs:
        say(f"A resume {recurrence(step)}.", console)
    if end.can_be_resumed:
        say(f"Resume it with: {request.resume_command}", console)


def _answer(request: DriveRequest, progress: RunProgress, end: _End) -> dict[str, object]:
    return {
        "run_id": request.run_id,
        "status": end.status,
        "began_with": progress.began_with,
        "steps_run": progress.completed,
        "steps_skipped": progress.skipped,
        "output": _output_tree(end.output, request.loaded.workflow),
        "message": end.message,
        "recurs": [*end.recurs],
        "resume_with": request.resume_command if end.can_be_resumed else None,
    }


def _output_tree(output: object, workflow: AnyWorkflow) -> Any:
    """Return an output as plain JSON, or its `repr` if it has no encoding."""
    if isinstance(output, Machine):
        return orjson.loads(cast("Machine[Any]", output).to_json())
    try:
        return plain_tree(to_tree(output, types=workflow.blueprint.output_types))
    except CheckpointError:
        return repr(output)
