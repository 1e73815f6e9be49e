"""The commands that drive runs: demo, run and resume."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any, NoReturn
from uuid import uuid4

import typer
from rich.console import Console

from effectflow.checkpoint import CheckpointStore, RunInfo, RunQuery
from effectflow.checkpoint.reading import run_not_found
from effectflow.cli.census.pipeline import CensusJob, census
from effectflow.cli.driving import Drive, drive
from effectflow.cli.exits import ExitCode
from effectflow.cli.finding import demo_workflow, workflow_of
from effectflow.cli.keys import EncryptionKeysOption, KeyFileOption, Keys
from effectflow.cli.loading import BadUse, LoadedWorkflow, load_workflow, read_input
from effectflow.cli.opening import bad_use, check_store, fail, given_keys, read_store
from effectflow.cli.options import STORE, AppOption, JsonOption, StoreOption

__all__ = ["demo", "resume", "run"]

_REPORT = "effectflow-report"


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
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a census of Python source files, durably. Kill it at any moment, then resume it."""
    chosen = (folder or Path(dataclasses.__file__).parent).resolve()
    if not chosen.is_dir():
        fail(ExitCode.BAD_USE, f"{chosen} is no folder")
    check_store(store)
    job = CensusJob(str(chosen), str(report.resolve()), limit)
    run_id = _chosen(run_id, census.name)
    if not as_json:
        Console().print(
            f"Run {run_id}: Python files below {chosen}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    keys = given_keys(key_file, encryption_keys)
    _drive(
        demo_workflow(), store, census.start(job, run_id=run_id), run_id, keys=keys, as_json=as_json
    )


def run(
    workflow: Annotated[str, typer.Argument(metavar="APP:WORKFLOW", help="Module and workflow.")],
    input: Annotated[str, typer.Option("--input", help="JSON, or @FILE.")] = "null",
    run_id: Annotated[str | None, typer.Option(help="Names the run.")] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on an input. With the id of a run of the same input, go on with that run."""
    with bad_use():
        loaded = load_workflow(workflow)
        value = _structured(loaded, read_input(input))
    run_id = _chosen(run_id, loaded.workflow.name)
    effect = loaded.workflow.start(value, run_id=run_id)
    keys = given_keys(key_file, encryption_keys)
    _drive(loaded, store, effect, run_id, keys=keys, app=workflow, as_json=as_json)


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
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take up a run where it stood. What was done is skipped."""
    if (run_id is None) is not latest:
        fail(ExitCode.BAD_USE, "give either a run id or --latest")
    info = read_store(store, lambda found: _choose(found, run_id))
    if info is None:
        fail(ExitCode.BAD_USE, f"no run in {store} can be resumed; `effectflow list` shows them")
    loaded = workflow_of(info, app)
    effect = loaded.workflow.resume(info.run_id, force=force)
    keys = given_keys(key_file, encryption_keys)
    _drive(loaded, store, effect, info.run_id, keys=keys, app=app, as_json=as_json)


def _chosen(run_id: str | None, workflow: str) -> str:
    """The id of a run to start: made up if none was given."""
    return f"{workflow}-{uuid4().hex[:8]}" if run_id is None else run_id


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
    check_store(store)
    words = ["effectflow", "resume", run_id]
    words += ["--store", store] if store != STORE else []
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
