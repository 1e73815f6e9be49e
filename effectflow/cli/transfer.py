"""The commands that move runs between stores: export and import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    CorruptCheckpoint,
    ExportedRun,
    UnsupportedVersion,
    export_run,
    import_run,
    read_exported,
    write_exported,
)
from effectflow.checkpoint.journal_reader import all_run_ids
from effectflow.cli.exits import BadUse, ExitCode
from effectflow.cli.render import JsonOption, print_json, say
from effectflow.cli.store_access import STORE, StoreOption, with_store

__all__ = ["export_runs", "import_runs"]


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
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise BadUse(f"cannot read {source}: {error.strerror}") from error

    async def load(opened: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(opened, run) for run in read_exported(lines)}

    imported = with_store(store, load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        say(f"{run_id}: {'imported' if is_new else 'already in the store'}")
