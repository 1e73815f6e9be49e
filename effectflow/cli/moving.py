"""The commands that move runs between stores: export and import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

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
from effectflow.checkpoint.reading import all_run_ids
from effectflow.cli.exits import ExitCode
from effectflow.cli.opening import fail, read_store, say
from effectflow.cli.options import STORE, JsonOption, StoreOption
from effectflow.cli.showing import print_json

__all__ = ["export_runs", "import_runs"]


def export_runs(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="The runs; all of the store if none is given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file; standard output if not given.")
    ] = None,
    store: StoreOption = STORE,
) -> None:
    """Write runs as lines of JSON, which `import` puts into a store of any kind.

    One that cannot be read is left out, and told of at the end.
    """
    problems: list[CheckpointError] = []

    async def export(found: CheckpointStore) -> list[ExportedRun]:
        runs: list[ExportedRun] = []
        for one in run_ids or await all_run_ids(found):
            try:
                runs.append(await export_run(found, one))
            except (CorruptCheckpoint, UnsupportedVersion) as error:
                problems.append(error)
        return runs

    data = b"".join(line for run in read_store(store, export) for line in write_exported(run))
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            fail(ExitCode.BAD_USE, f"{output} cannot be written: {error.strerror}")
    if problems:
        told = "; ".join(map(str, problems))
        fail(ExitCode.CHECKPOINT_ERROR, f"not all runs were exported: {told}")


def import_runs(
    source: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """Put runs that were exported into a store. Runs that are there already are left alone."""
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        fail(ExitCode.BAD_USE, f"{source} cannot be read: {error.strerror}")

    async def load(found: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(found, run) for run in read_exported(lines)}

    imported = read_store(store, load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        say(f"{run_id}: {'imported' if is_new else 'is there already'}")
