"""`effectflow export` and `effectflow import`: copy runs between stores."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    CorruptCheckpoint,
    RunConflict,
    UnsupportedVersion,
    export_run,
    import_run,
    write_exported,
)
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ExitCode, LatestOption, check_choice
from effectflow.cli.render import counted
from effectflow.cli.suggestions import message_of
from effectflow.stores._archive import newest_in, open_export, superseded_in

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
        Path | None,
        typer.Option(
            help="The file to write, compressed if its name ends with .gz; by default, and with -, "
            "standard output."
        ),
    ] = None,
) -> Answer:
    """Write runs as lines of JSON, which `import` reads into a store of any kind.

    Skip runs that cannot be read, and name them at the end.
    """
    if output == Path("-"):
        output = None
    if access.as_json and output is None:
        raise BadUse("an export is JSON: leave out --json, or write it to a file with --output")
    if run_ids:
        check_choice(run_id=run_ids, latest=latest)
    ids, problems = list[str](), list[CheckpointError]()
    with _written(output) as file:

        async def export(store: CheckpointStore) -> None:
            # One at a time, because all runs of a store may not fit into memory.
            for run_id in await access.chosen_or_all(run_ids or (), latest):
                try:
                    run = await export_run(store, run_id)
                except (CorruptCheckpoint, UnsupportedVersion) as error:
                    problems.append(error)
                else:
                    file.writelines(write_exported(run))
                    ids.append(run_id)

        access.use(export)
    lines = [] if output is None else [f"{counted(len(ids), 'run')} written to {output}"]
    return _without_some(Answer(ids, lines), "exported", problems)


def _without_some(answer: Answer, done: str, problems: Sequence[CheckpointError]) -> Answer:
    """Return the answer of a command that had to skip some runs."""
    if not problems:
        return answer
    reasons = "; ".join(map(message_of, problems))
    problem = f"effectflow: some runs were not {done}: {reasons}"
    return replace(answer, problems=[problem], code=ExitCode.CHECKPOINT_ERROR)


@contextmanager
def _written(output: Path | None) -> Generator[BinaryIO]:
    """Open a file to write, or standard output. Raise BadUse if the file cannot be written."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    try:
        is_compressed = output.suffix == ".gz"
        with gzip.open(output, "wb") if is_compressed else output.open("wb") as file:
            yield cast("BinaryIO", file)
    except OSError as error:
        raise BadUse(f"cannot write {output}: {error.strerror}") from error


@command(ServiceOption, keys=False, must_exist=False)
async def import_runs(
    access: Access,
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `export` or `archive` wrote.")
    ],
) -> Answer:
    """Add exported runs to a store. Runs that the store already has stay as they are.

    Of a run that the file has twice, add the newer copy. Skip runs whose id belongs to another run in the
    store, and name them at the end.
    """
    imported, problems = dict[str, bool](), list[CheckpointError]()
    try:
        with open_export(source) as file:
            for found in newest_in(file, source, superseded_in(source)):
                run = found.load()
                try:
                    imported[run.run_id] = await import_run(access.store, run)
                except RunConflict as error:
                    problems.append(error)
    except OSError as error:
        raise BadUse(f"cannot read {source}: {error.strerror}") from error
    said = {True: "imported", False: "already in the store"}
    lines = [f"{run_id}: {said[is_new]}" for run_id, is_new in imported.items()]
    return _without_some(Answer(imported, lines), "imported", problems)
