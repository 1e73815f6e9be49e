"""The commands that read, repair and copy stored runs: list, show, verify, repair, export, and others."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from returns.result import Failure
from rich.console import Console

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    CorruptCheckpoint,
    Entry,
    ExportedRun,
    Repair,
    ResumePlan,
    RunQuery,
    UnsupportedVersion,
    Verification,
    export_run,
    import_run,
    plan_resume,
    read_checkpoint,
    read_exported,
    repair_run,
    verify_run,
    write_exported,
    write_removed,
)
from effectflow.checkpoint.journal_reader import all_run_ids, read_existing
from effectflow.cli.access import access_to
from effectflow.cli.app_loader import app_hint, is_demo, workflow_of_run
from effectflow.cli.options import (
    STORE,
    AppOption,
    BadUse,
    EncryptionKeysOption,
    ExitCode,
    JsonOption,
    KeyFileOption,
    LatestOption,
    LatestResumableOption,
    RunArgument,
    ServiceOption,
    StoreOption,
    check_choice,
    chosen_run,
    read_file,
)
from effectflow.cli.render import (
    counted,
    entry_tree,
    plan_tree,
    print_json,
    repair_tree,
    run_tree,
    say,
    show_history,
    show_plan,
    show_repair,
    show_runs,
    show_verifications,
)
from effectflow.cli.run_search import (
    STATUSES,
    FoundRuns,
    RunSearch,
    read_moment,
    read_pair,
    read_statuses,
)
from effectflow.cli.run_view import RunView, show_run, view_run, view_tree
from effectflow.cli.suggestions import message_of, with_options
from effectflow.stores._atomic_files import folder_name, write_whole


def list_runs(
    workflow: Annotated[str | None, typer.Option(help="Show only runs of this workflow.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help=f"Show only runs that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}. Repeat it for "
            "several.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Show only runs updated since then: 30m, 2h or 7d ago, or a date and time."
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Show only runs with this in their context. Repeat it for several. Reads all runs.",
        ),
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Show only runs within this run.")
    ] = None,
    resumable: Annotated[bool, typer.Option(help="Show only runs that can be resumed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the table again every two seconds, until Ctrl-C.")
    ] = False,
    app: ServiceOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, newest first."""
    if watch and as_json:
        raise BadUse("--watch shows a table: leave out --json")
    access = access_to(store, key_file, encryption_keys, service=app)
    search = RunSearch(
        RunQuery(workflow=workflow, resumable=resumable),
        statuses=read_statuses(status or ()),
        since=None if since is None else read_moment(since, time.time()),
        context=tuple(map(read_pair, context or ())),
        parent=parent,
        limit=limit,
        seal=access.seal,
    )
    console = Console()
    with suppress(KeyboardInterrupt):
        while watch:
            found = access.use(search.run)
            console.clear()
            _show_found(found, search, console)
            time.sleep(_SECONDS_BETWEEN_TABLES)
    if watch:
        return
    found = access.use(search.run)
    _show_found(found, search, console, as_json=as_json)
    if found.problems:
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


_SECONDS_BETWEEN_TABLES = 2.0


def _show_found(
    found: FoundRuns, search: RunSearch, console: Console, *, as_json: bool = False
) -> None:
    if as_json:
        print_json([run_tree(info, found.at) for info in found.runs])
    elif found.runs:
        show_runs(console, found.runs, found.at)
    elif search.is_for_all:
        say("This store has no runs. `effectflow demo` starts one.", console)
    else:
        say(with_options("No run matches; `effectflow list` shows all runs."), console)
    errors = Console(stderr=True)
    if found.has_more:
        say(f"There are more than these {search.limit} runs: --limit shows more.", errors)
    for problem in found.problems:
        say(f"effectflow: its context is unknown: {message_of(problem)}", errors)


def show(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    at: Annotated[
        int | None, typer.Option(min=1, help="Show the run as it was after this many entries.")
    ] = None,
    app: ServiceOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a run, now or after an earlier entry."""
    check_choice(run_id=run_id, latest=latest)
    access = access_to(store, key_file, encryption_keys, service=app)

    async def read(opened: CheckpointStore) -> RunView:
        try:
            return await view_run(
                access.checkpoints, opened, await chosen_run(opened, run_id), at=at
            )
        except ValueError as error:
            raise BadUse(str(error)) from error

    view = access.use(read)
    if as_json:
        print_json(view_tree(view))
    else:
        show_run(Console(), view)


def history(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    app: ServiceOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the journal of a run, one entry per line."""
    check_choice(run_id=run_id, latest=latest)
    access = access_to(store, key_file, encryption_keys, service=app)
    seal = access.seal

    async def read(opened: CheckpointStore) -> tuple[Entry, ...]:
        return await read_existing(opened, await chosen_run(opened, run_id), seal)

    entries = access.use(read)
    if as_json:
        print_json([entry_tree(entry) for entry in entries])
    else:
        show_history(Console(), entries)


def verify(
    run_id: Annotated[
        str | None, typer.Argument(help="The run to check; by default all runs.")
    ] = None,
    latest: LatestOption = False,
    app: ServiceOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that the entries of a run, or of all runs, are undamaged."""
    if run_id is not None:
        check_choice(run_id=run_id, latest=latest)
    access = access_to(store, key_file, encryption_keys, service=app)
    seal = access.seal

    async def check(opened: CheckpointStore) -> list[Verification]:
        if run_id is None and not latest:
            run_ids = await all_run_ids(opened)
        else:
            run_ids = [await chosen_run(opened, run_id)]
        return [await verify_run(opened, one, seal) for one in run_ids]

    verifications = access.use(check)
    if as_json:
        print_json(
            [
                {
                    "run_id": one.run_id,
                    "entries": one.length,
                    "good": one.good,
                    "problem": None if one.problem is None else message_of(one.problem),
                }
                for one in verifications
            ]
        )
    else:
        show_verifications(Console(), verifications)
    if any(one.problem is not None for one in verifications):
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def repair(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
    aside: Annotated[
        Path, typer.Option(help="The folder for a file that keeps the removed entries.")
    ] = Path(),
    app: ServiceOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Truncate a damaged run after its last intact entry, so that it can be resumed.

    First show what is lost and which steps run again, and ask. A file keeps what is removed.
    """
    check_choice(run_id=run_id, latest=latest)
    access = access_to(store, key_file, encryption_keys, service=app)
    seal = access.seal
    console = Console(stderr=as_json)

    async def look(opened: CheckpointStore) -> Repair:
        return await repair_run(opened, await chosen_run(opened, run_id), seal, dry_run=True)

    found = access.use(look)
    if found.problem is not None:
        show_repair(console, found)
        if not (yes or _is_confirmed("Repair the run?", err=as_json)):
            raise BadUse("nothing was changed. `--yes` repairs the run without asking")
    kept: list[Path] = []
    repaired = access.use(
        lambda opened: repair_run(
            opened, found.run_id, seal, aside=lambda one: kept.extend(_keep_removed(one, aside))
        ),
    )
    path = str(kept[0]) if kept else None
    if as_json:
        print_json({**repair_tree(repaired), "aside": path})
    elif repaired.problem is None:
        say(
            f"{found.run_id}: good, {counted(repaired.kept, 'entry')}. There is nothing to repair.",
            console,
        )
    else:
        say(f"Repaired{f': what was removed is in {path}' if path else ''}.", console)


def _is_confirmed(question: str, *, err: bool) -> bool:
    try:
        return typer.confirm(question, err=err)
    except typer.Abort:
        return False


def _keep_removed(repair: Repair, folder: Path) -> list[Path]:
    """Write what a repair removes to a new file. Return its path, or nothing if nothing is removed."""
    if not (repair.removed or repair.unreadable):
        return []
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{folder_name(repair.run_id)}-{moment}.jsonl"
    try:
        write_whole(path, b"".join(write_removed(repair)))
    except OSError as error:
        raise BadUse(f"nothing was changed: cannot write {path}: {error.strerror}") from error
    return [path]


def plan(
    run_id: RunArgument = None,
    latest: LatestResumableOption = False,
    app: AppOption = None,
    store: StoreOption = STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="Run the effects between steps, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a resume of a run would do, without doing it. Exit with 4 if it would be rejected."""
    check_choice(run_id=run_id, latest=latest)
    access = access_to(store, key_file, encryption_keys, app=app)
    seal = access.seal

    async def make(opened: CheckpointStore) -> tuple[Checkpoint, ResumePlan, str]:
        chosen = await chosen_run(opened, run_id, resumable=True)
        checkpoint = await read_checkpoint(opened, chosen, seal)
        name, module = checkpoint.workflow, checkpoint.module
        if app is None and not is_demo(name, module):
            return checkpoint, plan_resume(checkpoint), app_hint(module)
        loaded = workflow_of_run(chosen, name, app, module)
        async with loaded.opened_environment(access.checkpoints) as env:
            made = await loaded.workflow.plan(chosen, effects=effects).run(env)
        # Not raised through the environment, which might wrap it.
        if isinstance(made, Failure):
            raise made.failure()
        return checkpoint, made.unwrap(), ""

    checkpoint, made, hint = access.use(make)
    if as_json:
        print_json({"run_id": checkpoint.run_id, **plan_tree(made)})
    else:
        show_plan(Console(), made, checkpoint.workflow, hint)
    if made.problem is not None:
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def export_runs(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="The runs to export; by default all runs.")
    ] = None,
    latest: LatestOption = False,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default standard output.")
    ] = None,
    app: ServiceOption = None,
    store: StoreOption = STORE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the exported runs as JSON; needs --output.")
    ] = False,
) -> None:
    """Write runs as lines of JSON, which `import` reads into a store of any kind.

    Skip runs that cannot be read, and name them at the end.
    """
    if as_json and output is None:
        raise BadUse("an export is JSON: leave out --json, or write it to a file with --output")
    if run_ids:
        check_choice(run_id=run_ids[0], latest=latest)
    problems: list[CheckpointError] = []

    async def export(opened: CheckpointStore) -> list[ExportedRun]:
        runs: list[ExportedRun] = []
        chosen = [await chosen_run(opened, None)] if latest else run_ids
        for run_id in chosen or await all_run_ids(opened):
            try:
                runs.append(await export_run(opened, run_id))
            except (CorruptCheckpoint, UnsupportedVersion) as error:
                problems.append(error)
        return runs

    exported = access_to(store, service=app).use(export)
    data = b"".join(line for run in exported for line in write_exported(run))
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            raise BadUse(f"cannot write {output}: {error.strerror}") from error
        if as_json:
            print_json([run.run_id for run in exported])
        else:
            say(f"{counted(len(exported), 'run')} written to {output}")
    if problems:
        reasons = "; ".join(map(message_of, problems))
        say(f"effectflow: some runs were not exported: {reasons}", Console(stderr=True))
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


def import_runs(
    source: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    app: ServiceOption = None,
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """Add exported runs to a store. Runs that the store already has stay as they are."""
    lines = read_file(source, str(source)).splitlines()

    async def load(opened: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(opened, run) for run in read_exported(lines)}

    imported = access_to(store, service=app).use(load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        say(f"{run_id}: {'imported' if is_new else 'already in the store'}")
