"""The commands that read stored runs and copy them: list, show, history, verify, plan, export, import."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    CheckpointStore,
    CorruptCheckpoint,
    Entry,
    ExportedRun,
    ResumePlan,
    RunInfo,
    RunQuery,
    UnsupportedVersion,
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
from effectflow.checkpoint.entries import write_entry
from effectflow.checkpoint.journal_reader import all_run_ids, run_not_found
from effectflow.checkpoint.values import Tree
from effectflow.cli.app_loader import PlainEnvironment, workflow_of_run
from effectflow.cli.census import census
from effectflow.cli.options import (
    STORE,
    AppOption,
    BadUse,
    EncryptionKeysOption,
    ExitCode,
    JsonOption,
    KeyFileOption,
    StoreOption,
    read_file,
    read_keys,
    with_store,
)
from effectflow.cli.render import (
    checkpoint_tree,
    plan_tree,
    print_json,
    say,
    show_checkpoint,
    show_history,
    show_plan,
    show_runs,
    show_verifications,
)

RunArgument = Annotated[
    str, typer.Argument(help="The id of the run, as `effectflow list` shows it.")
]


def list_runs(
    workflow: Annotated[str | None, typer.Option(help="Show only runs of this workflow.")] = None,
    resumable: Annotated[bool, typer.Option(help="Show only runs that can be resumed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, newest first."""
    query = RunQuery(workflow=workflow, resumable=resumable, limit=limit)
    runs = with_store(store, lambda opened: opened.find(query))
    now = time.time()
    if as_json:
        print_json([_run_tree(info, now) for info in runs])
    else:
        show_runs(Console(), runs, now)


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


def show(
    run_id: RunArgument,
    at: Annotated[
        int | None, typer.Option(min=1, help="Show the run as it was after this many entries.")
    ] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a run, now or after an earlier entry."""
    seal = read_keys(key_file, encryption_keys).seal

    async def read(opened: CheckpointStore) -> tuple[Checkpoint, str]:
        try:
            return await read_checkpoint(opened, run_id, seal, at=at), opened.durability
        except ValueError as error:
            raise BadUse(str(error)) from error

    checkpoint, durability = with_store(store, read)
    if as_json:
        print_json(checkpoint_tree(checkpoint))
    else:
        show_checkpoint(Console(), checkpoint, durability)


def history(
    run_id: RunArgument,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the journal of a run, one entry per line."""
    seal = read_keys(key_file, encryption_keys).seal

    async def read(opened: CheckpointStore) -> list[Entry]:
        entries = await read_entries(opened, run_id, seal)
        if not entries:
            raise await run_not_found(opened, run_id)
        return entries

    entries = with_store(store, read)
    if as_json:
        print_json([write_entry(entry) for entry in entries])
    else:
        show_history(Console(), entries)


def verify(
    run_id: Annotated[
        str | None, typer.Argument(help="The run to check; by default all runs.")
    ] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every entry of a run, or of all runs, is as it was written."""
    seal = read_keys(key_file, encryption_keys).seal

    async def check(opened: CheckpointStore) -> list[Verification]:
        run_ids = [run_id] if run_id is not None else await all_run_ids(opened)
        return [await verify_run(opened, one, seal) for one in run_ids]

    verifications = with_store(store, check)
    if as_json:
        print_json(
            [
                {
                    "run_id": one.run_id,
                    "entries": one.length,
                    "good": one.good,
                    "problem": None if one.problem is None else str(one.problem),
                }
                for one in verifications
            ]
        )
    else:
        show_verifications(Console(), verifications)
    if any(one.problem is not None for one in verifications):
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def plan(
    run_id: RunArgument,
    app: AppOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="Run the effects between steps, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a resume of a run would do, without doing it."""
    seal = read_keys(key_file, encryption_keys).seal

    async def make(opened: CheckpointStore) -> tuple[str, ResumePlan]:
        checkpoint = await read_checkpoint(opened, run_id, seal)
        name = checkpoint.workflow
        if app is None and name != census.name:
            return name, plan_resume(checkpoint)
        # A plan runs no steps, so it needs nothing from the workflow's own environment.
        env = PlainEnvironment(Checkpoints(opened, key=seal.key, encryption=seal.encryption))
        effect = workflow_of_run(name, app).workflow.plan(run_id, effects=effects)
        return name, await effect.run_or_raise(env)

    workflow_name, made = with_store(store, make)
    if as_json:
        print_json({"run_id": run_id, **plan_tree(made)})
    else:
        show_plan(Console(), made, workflow_name)


def export_runs(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="The runs to export; by default all runs.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default standard output.")
    ] = None,
    store: StoreOption = STORE,
) -> None:
    """Write runs as lines of JSON, which `import` reads into a store of any kind.

    Skip runs that cannot be read, and name them at the end.
    """
    problems: list[CheckpointError] = []

    async def export(opened: CheckpointStore) -> list[ExportedRun]:
        runs: list[ExportedRun] = []
        for run_id in run_ids or await all_run_ids(opened):
            try:
                runs.append(await export_run(opened, run_id))
            except (CorruptCheckpoint, UnsupportedVersion) as error:
                problems.append(error)
        return runs

    data = b"".join(line for run in with_store(store, export) for line in write_exported(run))
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            raise BadUse(f"cannot write {output}: {error.strerror}") from error
    if problems:
        reasons = "; ".join(map(str, problems))
        say(f"effectflow: some runs were not exported: {reasons}", Console(stderr=True))
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def import_runs(
    source: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """Add exported runs to a store. Runs that the store already has stay as they are."""
    lines = read_file(source, str(source)).splitlines()

    async def load(opened: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(opened, run) for run in read_exported(lines)}

    imported = with_store(store, load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        say(f"{run_id}: {'imported' if is_new else 'already in the store'}")
