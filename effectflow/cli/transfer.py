"""`effectflow export` and `effectflow import`: copy runs between stores."""

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
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ExitCode, LatestOption, check_choice, read_file
from effectflow.cli.render import counted
from effectflow.cli.suggestions import message_of

_JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the exported runs as JSON; needs --output.")
]


@command(ServiceOption, keys=False, json_option=_JsonOption)
def export_runs(
    access: Access,
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN_ID...", help="The runs to export; by default all runs."),
    ] = None,
    latest: LatestOption = False,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default standard output.")
    ] = None,
) -> Answer:
    """Write runs as lines of JSON, which `import` reads into a store of any kind.

    Skip runs that cannot be read, and name them at the end.
    """
    if access.as_json and output is None:
        raise BadUse("an export is JSON: leave out --json, or write it to a file with --output")
    if run_ids:
        check_choice(run_id=run_ids, latest=latest)
    runs, problems = list[ExportedRun](), list[CheckpointError]()

    async def export(store: CheckpointStore) -> None:
        for run_id in await access.chosen_or_all(run_ids or (), latest):
            try:
                runs.append(await export_run(store, run_id))
            except (CorruptCheckpoint, UnsupportedVersion) as error:
                problems.append(error)

    access.use(export)
    data = b"".join(line for run in runs for line in write_exported(run))
    lines: list[str] = []
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            raise BadUse(f"cannot write {output}: {error.strerror}") from error
        lines = [f"{counted(len(runs), 'run')} written to {output}"]
    ids = [run.run_id for run in runs]
    if not problems:
        return Answer(ids, lines)
    reasons = "; ".join(map(message_of, problems))
    problem = f"effectflow: some runs were not exported: {reasons}"
    return Answer(ids, lines, [problem], ExitCode.CHECKPOINT_ERROR)


@command(ServiceOption, keys=False, must_exist=False)
async def import_runs(
    access: Access,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `export` wrote.")],
) -> Answer:
    """Add exported runs to a store. Runs that the store already has stay as they are."""
    lines = read_file(source, str(source)).splitlines()
    imported = {run.run_id: await import_run(access.store, run) for run in read_exported(lines)}
    said = {True: "imported", False: "already in the store"}
    return Answer(imported, [f"{run_id}: {said[is_new]}" for run_id, is_new in imported.items()])
