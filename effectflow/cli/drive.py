"""The commands that drive runs: demo, run and resume."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast
from uuid import uuid4

import anyio
import orjson
import typer
from returns.result import Failure, Result
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointEvent,
    Checkpoints,
    CheckpointStore,
    Completed,
    EntryAppended,
    RunInfo,
    RunQuery,
    StepSkipped,
)
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.values import KnownTypes, to_tree
from effectflow.cli.app_loader import LoadedWorkflow, demo_workflow, load_workflow, workflow_of_run
from effectflow.cli.census import CensusJob, census
from effectflow.cli.options import (
    STORE,
    AppOption,
    BadUse,
    EncryptionKeysOption,
    ExitCode,
    JsonOption,
    KeyFileOption,
    Keys,
    StoreOption,
    read_file,
    read_keys,
    store_at,
    with_store,
)
from effectflow.cli.render import say
from effectflow.effects import Effect
from effectflow.service import StoppedBySignal, run_until_signal
from effectflow.stores import open_store
from effectflow.workflows import Machine


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
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a census of Python source files, durably. Kill it at any moment, then resume it."""
    chosen = (folder or Path(dataclasses.__file__).parent).resolve()
    if not chosen.is_dir():
        raise BadUse(f"{chosen} is not a folder")
    store_at(store)
    run_id = _run_id_or_new(run_id, census.name)
    if not as_json:
        say(f"Run {run_id}: Python files below {chosen}")
    effect = census.start(CensusJob(str(chosen), str(report.resolve()), limit), run_id=run_id)
    keys = read_keys(key_file, encryption_keys)
    _drive(_Job(demo_workflow(), effect, run_id, store, keys, as_json=as_json))


def run(
    workflow: Annotated[str, typer.Argument(metavar="APP:WORKFLOW", help="Module and workflow.")],
    input: Annotated[str, typer.Option("--input", help="The input: JSON, or @FILE.")] = "null",
    run_id: Annotated[str | None, typer.Option(help="The id of the run.")] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on an input. Given the id of a run with the same input, continue that run."""
    loaded = load_workflow(workflow)
    try:
        value = loaded.workflow.structure_input(_read_input(input))
    except ValueError as error:
        raise BadUse(str(error)) from error
    run_id = _run_id_or_new(run_id, loaded.workflow.name)
    effect = loaded.workflow.start(value, run_id=run_id)
    keys = read_keys(key_file, encryption_keys)
    _drive(_Job(loaded, effect, run_id, store, keys, app=workflow, as_json=as_json))


def resume(
    run_id: Annotated[str | None, typer.Argument(help="The id of the run.")] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Resume the newest run that can be resumed.")
    ] = False,
    app: AppOption = None,
    force: Annotated[
        bool,
        typer.Option(
            help="Continue even if the workflow changed or the outcome of a step is unknown."
        ),
    ] = False,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a run from where it stopped. Completed steps are skipped."""
    if (run_id is None) is not latest:
        raise BadUse("give either a run id or --latest")

    async def find(opened: CheckpointStore) -> RunInfo:
        if run_id is None:
            for newest in await opened.find(RunQuery(resumable=True, limit=1)):
                return newest
            raise BadUse(f"no run in {store} can be resumed; `effectflow list` shows all runs")
        found = await opened.info(run_id)
        if found is None:
            raise await run_not_found(opened, run_id)
        return found

    info = with_store(store, find)
    loaded = workflow_of_run(info.summary.workflow, app)
    effect = loaded.workflow.resume(info.run_id, force=force)
    keys = read_keys(key_file, encryption_keys)
    _drive(_Job(loaded, effect, info.run_id, store, keys, app=app, as_json=as_json))


def _run_id_or_new(run_id: str | None, workflow_name: str) -> str:
    return f"{workflow_name}-{uuid4().hex[:8]}" if run_id is None else run_id


def _read_input(text: str) -> Any:
    """Return the JSON in `text`, or in the file that `@path` names."""
    name = text.removeprefix("@")
    source = text.encode() if name == text else read_file(Path(name), f"the input file {name!r}")
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError as error:
        excerpt = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise BadUse(
            f"the input is not JSON: {error.msg} at line {error.lineno}, column {error.colno}, "
            f"near {excerpt!r}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Job:
    """A run to drive: its workflow, the effect that starts or resumes it, and where it is stored."""

    loaded: LoadedWorkflow
    effect: Effect[Any, Any, Any]
    run_id: str
    store: str
    keys: Keys
    app: str | None = None
    as_json: bool = False

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        words = ["effectflow", "resume", self.run_id]
        words += ["--store", self.store] if self.store != STORE else []
        words += ["--app", self.app] if self.app is not None else []
        return shlex.join([*words, *self.keys.options])


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended in this process."""

    status: Literal["completed", "failed", "interrupted", "checkpoint error"]
    message: str | None = None
    output: object = None


_EXIT_CODES = {
    "completed": ExitCode.DONE,
    "failed": ExitCode.WORKFLOW_FAILED,
    "interrupted": ExitCode.INTERRUPTED,
    "checkpoint error": ExitCode.CHECKPOINT_ERROR,
}


def _drive(job: _Job) -> NoReturn:
    """Drive a run to its end, or until a signal; report it, and exit."""
    store_at(job.store)
    sized_by = "discover_files" if job.loaded.workflow is census else None
    progress = RunProgress(Console(stderr=job.as_json), sized_by=sized_by)
    end = _end_of(job, progress)
    (_report_json if job.as_json else _report)(job, progress, end)
    raise typer.Exit(_EXIT_CODES[end.status])


def _end_of(job: _Job, progress: RunProgress) -> _End:
    try:
        result = anyio.run(_perform, job, progress)
    except StoppedBySignal as stop:
        return _End("interrupted", f"Interrupted by {stop.signal_name}.")
    except CheckpointError as error:
        return _End("checkpoint error", str(error))
    except Exception:
        say(traceback.format_exc().rstrip(), Console(stderr=True))
        return _End("failed", "The workflow ended in a defect, shown above.")
    match result:
        case Failure(CheckpointError() as error):
            return _End("checkpoint error", str(error))
        case Failure(error):
            return _End("failed", f"The workflow failed: {type(error).__name__}: {error}")
        case _:
            return _End("completed", output=result.unwrap())


async def _perform(job: _Job, progress: RunProgress) -> Result[Any, Any]:
    def stopping(signal_name: str) -> None:
        warning = f"Stopping after {signal_name}. A second signal ends the process at once."
        say(warning, progress.console)

    async with open_store(job.store) as store:
        seal = job.keys.seal
        checkpoints = Checkpoints(
            store, key=seal.key, encryption=seal.encryption, observers=(progress,)
        )
        # A signal cancels only the run, so that the environment can close in an orderly way.
        async with job.loaded.opened_environment(checkpoints) as env:
            with progress.bar:
                return await run_until_signal(lambda: job.effect.run(env), on_signal=stopping)


def _report(job: _Job, progress: RunProgress, end: _End) -> None:
    console = progress.console
    if end.message is not None:
        say(end.message, console)
    counts = f"{progress.completed} steps run, {progress.skipped} skipped (done before)"
    say(f"Run {job.run_id}: {end.status}; {counts}.", console)
    if end.output is not None:
        many = isinstance(end.output, list)
        for line in cast("list[object]", end.output) if many else [end.output]:
            say(str(line), console)
    if end.status in ("interrupted", "failed"):
        say(f"Resume it with: {job.resume_command}", console)


def _report_json(job: _Job, progress: RunProgress, end: _End) -> None:
    can_resume = end.status in ("interrupted", "failed")
    answer = {
        "run_id": job.run_id,
        "status": end.status,
        "steps_run": progress.completed,
        "steps_skipped": progress.skipped,
        "output": _output_tree(end.output),
        "message": end.message,
        "resume_with": job.resume_command if can_resume else None,
    }
    sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
    sys.stdout.flush()


def _output_tree(output: object) -> Any:
    """Return an output as it is saved, or its `repr` if it has no encoding."""
    if isinstance(output, Machine):
        return orjson.loads(cast("Machine[Any]", output).to_json())
    try:
        return to_tree(output, types=KnownTypes.of(type(output)))
    except CheckpointError:
        return repr(output)


_SECONDS_BETWEEN_LINES = 2.0


class RunProgress:
    """Counts the steps of a run, as an observer, and shows a bar on a terminal, or lines elsewhere.

    Attributes:
        completed: steps that this process completed.
        skipped: steps whose recorded output was used.
        total: how many steps the run has, once the step `sized_by` has returned the list of its items.
        bar: enter it while the run is driven.
    """

    def __init__(self, console: Console, *, sized_by: str | None = None) -> None:
        self.console = console
        self.sized_by = sized_by
        self.completed = 0
        self.skipped = 0
        self.total: int | None = None
        self._began = time.monotonic()
        self._printed_at = self._began
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("steps", total=None, rate="")

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case EntryAppended(_, Completed(step, output)):
                self.completed += 1
            case StepSkipped(_, step, output):
                self.skipped += 1
            case _:
                return
        if step == self.sized_by and isinstance(output, list):
            # This step, one step for each item, and the last step, which writes the reports.
            self.total = len(cast("list[object]", output)) + 2
        self._show()

    def _show(self) -> None:
        done = self.completed + self.skipped
        now = time.monotonic()
        rate = f"{self.completed / max(now - self._began, 1e-9):.0f}/s"
        if self.console.is_terminal:
            self.bar.update(self._task, completed=done, total=self.total, rate=rate)
        elif now - self._printed_at >= _SECONDS_BETWEEN_LINES:
            self._printed_at = now
            of_total = f" of {self.total}" if self.total else ""
            say(f"{done}{of_total} steps done, {rate}", self.console)
