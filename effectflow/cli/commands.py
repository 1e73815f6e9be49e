"""The commands of `effectflow`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from uuid import uuid4

import anyio
import typer
from rich.console import Console

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    CheckpointStore,
    Entry,
    ExportedRun,
    ResumePlan,
    RunInfo,
    RunNotFound,
    RunQuery,
    Verification,
    export_run,
    import_run,
    plan_resume,
    read_checkpoint,
    read_entries,
    read_exported,
    verify_run,
    write_exported,
)
from effectflow.checkpoint.entry_format import write_entry
from effectflow.checkpoint.reading import all_run_ids, run_not_found
from effectflow.checkpoint.values import Tree
from effectflow.cli.census.metrics import FileMetrics, measure
from effectflow.cli.census.pipeline import CensusJob, census
from effectflow.cli.exits import ExitCode
from effectflow.cli.keys import EncryptionKeysOption, KeyFileOption, Keys, read_keys
from effectflow.cli.loading import (
    BadUse,
    LoadedWorkflow,
    load_workflow,
    load_workflow_named,
    read_input,
)
from effectflow.cli.running import Drive, drive
from effectflow.cli.showing import (
    checkpoint_tree,
    print_json,
    show_checkpoint,
    show_history,
    show_plan,
    show_runs,
    show_verifications,
)
from effectflow.stores import SqliteStore, open_store

__all__ = ["app"]

A = TypeVar("A")

app = typer.Typer(
    name="effectflow",
    help="Durable workflows: run them, watch them, resume them after a crash.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="Where runs are kept, such as sqlite:///runs.db.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AppOption = Annotated[
    str | None, typer.Option("--app", help="The module, or MODULE:WORKFLOW, of the run's workflow.")
]
RunArgument = Annotated[str, typer.Argument(help="The run's id, as `effectflow list` shows it.")]

_STORE = "sqlite:///effectflow.db"
_REPORT = "effectflow-report"


@dataclasses.dataclass(frozen=True)
class DemoEnvironment:
    """The environment of `demo`: checkpoints, and the real way to measure a file."""

    checkpoints: Checkpoints

    def measure(self, folder: Path, name: str) -> FileMetrics:
        return measure(folder, name)


@app.command(epilog="Example: effectflow demo ~/projects/shop --report shop")
def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder with Python files; the standard library if not given."),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="Where to write the reports, without .txt and .json.")
    ] = Path(_REPORT),
    limit: Annotated[int, typer.Option(min=1, help="How many files at once.")] = 8,
    run_id: Annotated[str | None, typer.Option(help="Names the run.")] = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a census of Python source files, durably. Kill it at any moment, then resume it."""
    chosen = (folder or Path(dataclasses.__file__).parent).resolve()
    if not chosen.is_dir():
        _fail(ExitCode.BAD_USE, f"{chosen} is no folder")
    _store_named(store)
    job = CensusJob(str(chosen), str(report.resolve()), limit)
    run_id = run_id or f"census-{uuid4().hex[:8]}"
    if not as_json:
        Console().print(
            f"Run {run_id}: Python files below {chosen}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    keys = _keys(key_file, encryption_keys)
    _drive(_demo(), store, census.start(job, run_id=run_id), run_id, keys=keys, as_json=as_json)


@app.command(epilog="""Example: effectflow run shop.orders:checkout --input '{"cart": 7}'""")
def run(
    workflow: Annotated[str, typer.Argument(metavar="APP:WORKFLOW", help="Module and workflow.")],
    input: Annotated[str, typer.Option("--input", help="JSON, or @FILE.")] = "null",
    run_id: Annotated[str | None, typer.Option(help="Names the run.")] = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on an input. With the id of a run of the same input, go on with that run."""
    with _bad_use():
        loaded = load_workflow(workflow)
        value = _structured(loaded, read_input(input))
    run_id = run_id or f"{loaded.workflow.name}-{uuid4().hex[:8]}"
    effect = loaded.workflow.start(value, run_id=run_id)
    keys = _keys(key_file, encryption_keys)
    _drive(loaded, store, effect, run_id, keys=keys, app=workflow, as_json=as_json)


@app.command(epilog="Example: effectflow resume --latest")
def resume(
    run_id: Annotated[str | None, typer.Argument(help="The run's id.")] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="The newest run that can be resumed.")
    ] = False,
    app: AppOption = None,
    force: Annotated[
        bool,
        typer.Option(
            help="Go on although the workflow changed, or a step's outcome is not known.",
        ),
    ] = False,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take up a run where it stood. What was done is skipped."""
    if (run_id is None) is not latest:
        _fail(ExitCode.BAD_USE, "give either a run id or --latest")
    info = _read(store, lambda found: _choose(found, run_id))
    if info is None:
        _fail(ExitCode.BAD_USE, f"no run in {store} can be resumed; `effectflow list` shows them")
    loaded = _workflow_of(info, app)
    effect = loaded.workflow.resume(info.run_id, force=force)
    keys = _keys(key_file, encryption_keys)
    _drive(loaded, store, effect, info.run_id, keys=keys, app=app, as_json=as_json)


@app.command("list", epilog="Example: effectflow list --workflow census")
def list_runs(
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    resumable: Annotated[bool, typer.Option(help="Only runs that can be resumed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    store: StoreOption = _STORE,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, newest first."""
    query = RunQuery(workflow=workflow, resumable=resumable, limit=limit)
    runs = _read(store, lambda found: found.find(query))
    now = time.time()
    if as_json:
        print_json([_run_tree(info, now) for info in runs])
    else:
        show_runs(Console(), runs, now)


@app.command(epilog="Example: effectflow show census-1f0c7a2e")
def show(
    run_id: RunArgument,
    at: Annotated[
        int | None, typer.Option(min=1, help="As it was after so many entries of its history.")
    ] = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a run stands, or where it once stood."""
    seal = _keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> tuple[Checkpoint, str]:
        try:
            return await read_checkpoint(found, run_id, seal, at=at), found.durability
        except ValueError as error:
            raise BadUse(str(error)) from error

    checkpoint, durability = _read(store, read)
    if as_json:
        print_json(checkpoint_tree(checkpoint))
    else:
        show_checkpoint(Console(), checkpoint, durability)


@app.command(epilog="Example: effectflow history census-1f0c7a2e")
def history(
    run_id: RunArgument,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the journal of a run, an entry a line."""
    seal = _keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> list[Entry]:
        entries = await read_entries(found, run_id, seal)
        if not entries:
            raise await run_not_found(found, run_id)
        return entries

    entries = _read(store, read)
    if as_json:
        print_json([write_entry(entry) for entry in entries])
    else:
        show_history(Console(), entries)


@app.command(epilog="Example: effectflow verify --store file:./runs")
def verify(
    run_id: Annotated[
        str | None, typer.Argument(help="The run's id; all runs if not given.")
    ] = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every entry of a run, or of all runs, is what was written. Runs nothing."""
    seal = _keys(key_file, encryption_keys).seal

    async def check(found: CheckpointStore) -> list[Verification]:
        run_ids = [run_id] if run_id is not None else await all_run_ids(found)
        return [await verify_run(found, one, seal) for one in run_ids]

    verifications = _read(store, check)
    if as_json:
        print_json([_verification_tree(one) for one in verifications])
    else:
        show_verifications(Console(), verifications)
    if any(one.problem is not None for one in verifications):
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


@app.command("export", epilog="Example: effectflow export census-1f0c7a2e --output run.jsonl")
def export_runs(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="The runs; all of the store if none is given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file; standard output if not given.")
    ] = None,
    store: StoreOption = _STORE,
) -> None:
    """Write runs as lines of JSON, which `import` puts into a store of any kind."""

    async def export(found: CheckpointStore) -> list[ExportedRun]:
        return [await export_run(found, one) for one in run_ids or await all_run_ids(found)]

    data = b"".join(line for run in _read(store, export) for line in write_exported(run))
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        _fail(ExitCode.BAD_USE, f"{output} cannot be written: {error.strerror}")


@app.command("import", epilog="Example: effectflow import run.jsonl --store file:./runs")
def import_runs(
    source: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    store: StoreOption = _STORE,
    as_json: JsonOption = False,
) -> None:
    """Put runs that were exported into a store. Runs that are there already are left alone."""
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        _fail(ExitCode.BAD_USE, f"{source} cannot be read: {error.strerror}")

    async def load(found: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(found, run) for run in read_exported(lines)}

    imported = _read(store, load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        _say(f"{run_id}: {'imported' if is_new else 'is there already'}")


@app.command(epilog="Example: effectflow plan census-1f0c7a2e")
def plan(
    run_id: RunArgument,
    app: AppOption = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a resume of a run would do, without doing it."""
    seal = _keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> tuple[str, ResumePlan]:
        checkpoint = await read_checkpoint(found, run_id, seal)
        name = checkpoint.workflow
        if app is None and name != census.name:
            return name, plan_resume(checkpoint)
        checkpoints = Checkpoints(found, key=seal.key, encryption=seal.encryption)
        loaded = _workflow_named(name, app)
        effect = loaded.workflow.plan(run_id)
        return name, await effect.run_or_raise(loaded.environment(checkpoints))

    name, found = _read(store, read)
    if as_json:
        print_json(
            {
                "run_id": run_id,
                "start": found.start,
                "retry_current": found.retry_current,
                "skip": list(found.skip),
            }
        )
    else:
        show_plan(Console(), found, name)


def _demo() -> LoadedWorkflow:
    return LoadedWorkflow(census, DemoEnvironment)


def _workflow_of(info: RunInfo, app: str | None) -> LoadedWorkflow:
    return _workflow_named(info.summary.workflow, app)


def _workflow_named(name: str, app: str | None) -> LoadedWorkflow:
    """The workflow of a run: from `--app`, or the demonstration's own. Stored names are not imported."""
    if app is None and name == census.name:
        return _demo()
    if app is None:
        _fail(
            ExitCode.BAD_USE,
            f"this is a run of workflow {name!r}: say where it is with --app MODULE",
        )
    with _bad_use():
        return load_workflow_named(app, name)


def _keys(key_file: Path | None, encryption_keys: Path | None) -> Keys:
    with _bad_use():
        return read_keys(key_file, encryption_keys)


def _structured(loaded: LoadedWorkflow, data: Any) -> Any:
    try:
        return loaded.workflow.structure_input(data)
    except ValueError as error:
        raise BadUse(str(error)) from error


async def _choose(store: CheckpointStore, run_id: str | None) -> RunInfo | None:
    if run_id is None:
        runs = await store.find(RunQuery(resumable=True, limit=1))
        return runs[0] if runs else None
    info = await store.info(run_id)
    if info is None:
        raise await run_not_found(store, run_id)
    return info


def _drive(
    loaded: LoadedWorkflow,
    store: str,
    effect: Any,
    run_id: str,
    *,
    keys: Keys,
    app: str | None = None,
    as_json: bool,
) -> NoReturn:
    _store_named(store)
    words = ["effectflow", "resume", run_id]
    words += ["--store", store] if store != _STORE else []
    words += ["--app", app] if app is not None else []
    words += keys.words
    job = Drive(
        loaded=loaded,
        store=store,
        seal=keys.seal,
        effect=effect,
        run_id=run_id,
        resume_command=shlex.join(words),
        sized_by="discover_files" if loaded.workflow is census else None,
        as_json=as_json,
    )
    raise typer.Exit(drive(job))


def _say(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def _read(
    store: str, read: Callable[[CheckpointStore], Awaitable[A]], *, must_exist: bool = True
) -> A:
    """What `read(store)` gives; a checkpoint error ends the command."""

    opened = _store_named(store)
    if must_exist and isinstance(opened, SqliteStore) and not opened.path.exists():
        _fail(
            ExitCode.BAD_USE,
            f"there is no store {opened.path}; `effectflow demo` and `effectflow run` make one",
        )

    async def main() -> A:
        async with opened as found:
            return await read(found)

    try:
        return anyio.run(main)
    except (RunNotFound, BadUse) as error:
        _fail(ExitCode.BAD_USE, str(error))
    except CheckpointError as error:
        _fail(ExitCode.CHECKPOINT_ERROR, str(error))


def _store_named(url: str) -> CheckpointStore:
    try:
        return open_store(url)
    except ValueError as error:
        _fail(ExitCode.BAD_USE, str(error))


class _bad_use:  # noqa: N801
    """Turns BadUse into a message and the exit code for it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, BadUse):
            _fail(ExitCode.BAD_USE, str(error))


def _fail(code: ExitCode, message: str) -> NoReturn:
    Console(stderr=True).print(
        f"effectflow: {message}", highlight=False, markup=False, soft_wrap=True
    )
    raise typer.Exit(code)


def _run_tree(info: RunInfo, now: float) -> Tree:
    summary = info.summary
    return {
        "run_id": info.run_id,
        "workflow": summary.workflow,
        "kind": summary.kind,
        "version": summary.version,
        "status": str(summary.status),
        "resumable": info.is_resumable(now),
        "created_at": summary.created_at,
        "updated_at": info.updated_at,
        "entries": info.length,
    }


def _verification_tree(verification: Verification) -> Tree:
    problem = verification.problem
    return {
        "run_id": verification.run_id,
        "entries": verification.length,
        "good": verification.good,
        "problem": None if problem is None else str(problem),
    }
