"""`effectflow export` and `effectflow import`: copy runs between stores."""

from __future__ import annotations

import sys
from collections.abc import Iterable
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
from effectflow.cli.access import Access, to_sealed_runs, with_access
from effectflow.cli.options import BadUse, ExitCode, JsonOption, LatestOption, read_file
from effectflow.cli.render import counted, print_json, say
from effectflow.cli.suggestions import message_of


@with_access(to_sealed_runs)
def export_runs(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="The runs to export; by default all runs.")
    ] = None,
    latest: LatestOption = False,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default standard output.")
    ] = None,
    *,
    access: Access,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the exported runs as JSON; needs --output.")
    ] = False,
) -> None:
    """Write runs as lines of JSON, which `import` reads into a store of any kind.

    Skip runs that cannot be read, and name them at the end.
    """
    if as_json and output is None:
        raise BadUse("an export is JSON: leave out --json, or write it to a file with --output")
    problems: list[CheckpointError] = []

    async def export(opened: CheckpointStore, chosen: Iterable[str]) -> list[ExportedRun]:
        runs: list[ExportedRun] = []
        for run_id in chosen:
            try:
                runs.append(await export_run(opened, run_id))
            except (CorruptCheckpoint, UnsupportedVersion) as error:
                problems.append(error)
        return runs

    exported = access.use_runs(run_ids or (), latest, export)
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


@with_access(to_sealed_runs)
def import_runs(
    source: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Add exported runs to a store. Runs that the store already has stay as they are."""
    lines = read_file(source, str(source)).splitlines()

    async def load(opened: CheckpointStore) -> dict[str, bool]:
        return {run.run_id: await import_run(opened, run) for run in read_exported(lines)}

    imported = access.use(load, must_exist=False)
    if as_json:
        print_json(dict(imported))
        return
    for run_id, is_new in imported.items():
        say(f"{run_id}: {'imported' if is_new else 'already in the store'}")
