"""The commands that only look at runs: list, show, history, plan and verify."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from effectflow.checkpoint import (
    Checkpoint,
    Checkpoints,
    CheckpointStore,
    Entry,
    ResumePlan,
    RunInfo,
    RunQuery,
    Verification,
    failure_that_stands,
    plan_resume,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.entry_format import write_entry
from effectflow.checkpoint.reading import all_run_ids, run_not_found
from effectflow.checkpoint.values import Tree
from effectflow.cli.census.pipeline import census
from effectflow.cli.exits import ExitCode
from effectflow.cli.finding import workflow_named
from effectflow.cli.keys import EncryptionKeysOption, KeyFileOption
from effectflow.cli.loading import BadUse, PlainEnvironment
from effectflow.cli.opening import given_keys, read_store
from effectflow.cli.options import STORE, AppOption, JsonOption, RunArgument, StoreOption
from effectflow.cli.showing import (
    checkpoint_tree,
    print_json,
    show_checkpoint,
    show_history,
    show_plan,
    show_runs,
    show_verifications,
)

__all__ = ["history", "list_runs", "plan", "show", "verify"]


def list_runs(
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    resumable: Annotated[bool, typer.Option(help="Only runs that can be resumed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, newest first."""
    query = RunQuery(workflow=workflow, resumable=resumable, limit=limit)
    runs = read_store(store, lambda found: found.find(query))
    now = time.time()
    if as_json:
        print_json([_run_tree(info, now) for info in runs])
    else:
        show_runs(Console(), runs, now)


def show(
    run_id: RunArgument,
    at: Annotated[
        int | None, typer.Option(min=1, help="As it was after so many entries of its history.")
    ] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a run stands, or where it once stood."""
    seal = given_keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> tuple[Checkpoint, str]:
        try:
            return await read_checkpoint(found, run_id, seal, at=at), found.durability
        except ValueError as error:
            raise BadUse(str(error)) from error

    checkpoint, durability = read_store(store, read)
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
    """Show the journal of a run, an entry a line."""
    seal = given_keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> list[Entry]:
        entries = await read_entries(found, run_id, seal)
        if not entries:
            raise await run_not_found(found, run_id)
        return entries

    entries = read_store(store, read)
    if as_json:
        print_json([write_entry(entry) for entry in entries])
    else:
        show_history(Console(), entries)


def verify(
    run_id: Annotated[
        str | None, typer.Argument(help="The run's id; all runs if not given.")
    ] = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every entry of a run, or of all runs, is what was written. Runs nothing."""
    seal = given_keys(key_file, encryption_keys).seal

    async def check(found: CheckpointStore) -> list[Verification]:
        run_ids = [run_id] if run_id is not None else await all_run_ids(found)
        return [await verify_run(found, one, seal) for one in run_ids]

    verifications = read_store(store, check)
    if as_json:
        print_json([_verification_tree(one) for one in verifications])
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
    as_json: JsonOption = False,
) -> None:
    """Show what a resume of a run would do, without doing it."""
    seal = given_keys(key_file, encryption_keys).seal

    async def read(found: CheckpointStore) -> tuple[str, ResumePlan]:
        checkpoint = await read_checkpoint(found, run_id, seal)
        name = checkpoint.workflow
        if app is None and name != census.name:
            entries = await read_entries(found, run_id, seal)
            return name, replace(plan_resume(checkpoint), fails_again=failure_that_stands(entries))
        checkpoints = Checkpoints(found, key=seal.key, encryption=seal.encryption)
        # Nothing is run, so what the workflow needs for that is not made.
        effect = workflow_named(name, app).workflow.plan(run_id)
        return name, await effect.run_or_raise(PlainEnvironment(checkpoints))

    name, found = read_store(store, read)
    if as_json:
        print_json(
            {
                "run_id": run_id,
                "start": found.start,
                "retry_current": found.retry_current,
                "skip": list(found.skip),
                "fails_again": found.fails_again,
                "is_complete": found.is_complete,
            }
        )
    else:
        show_plan(Console(), found, name)


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
