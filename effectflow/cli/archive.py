"""`effectflow archive`: write runs to a compressed file, and delete them from their store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from effectflow.checkpoint import (
    CorruptCheckpoint,
    RunNotFound,
    UnsupportedVersion,
    export_run,
    write_exported,
)
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.filters import (
    BeforeOption,
    ContextOption,
    ParentOption,
    QueueOption,
    SinceOption,
    StatusOption,
    WorkflowOption,
    left_out,
)
from effectflow.cli.options import BadUse, ExitCode, LatestOption
from effectflow.cli.render import counted, print_json, say
from effectflow.cli.selection import (
    DryRunOption,
    RunsArgument,
    Selection,
    YesOption,
    reported,
    show_selected,
)
from effectflow.runs.retention import delete_archived
from effectflow.stores._archive import infos_in, new_archive


@command(ServiceOption, keys=False)
async def archive(
    access: Access,
    output: Annotated[
        Path, typer.Option(help="The new file, such as runs.jsonl.gz, compressed by gzip.")
    ],
    run_ids: RunsArgument = None,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete the runs that have ended, once the file is durable."),
    ] = False,
    latest: LatestOption = False,
    workflow: WorkflowOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    context: ContextOption = None,
    queue: QueueOption = None,
    parent: ParentOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> Answer:
    """Write runs to a compressed file, which `list`, `show`, `history`, `verify` and `import` read.

    Name the file with --store for these commands. With --delete, delete the runs that have ended or
    failed and are in the file as they are in the store, unless a parent may wait for them.
    """
    if output.exists():
        raise BadUse(f"{output} exists already, and may be all that is left of some runs")
    options = {
        "workflow": workflow,
        "status": status,
        "since": since,
        "before": before,
        "context": context,
        "queue": queue,
        "parent": parent,
    }
    selection = await Selection.of(access, run_ids, latest, options)
    verb = "archive and delete" if delete else "archive"
    if dry_run:
        return await show_selected(selection, verb)
    if delete:
        await selection.confirm(verb, yes=yes)
    code, count = ExitCode.DONE, 0
    try:
        with new_archive(output) as file:
            async for one in selection.runs():
                run_id = one if isinstance(one, str) else one.run_id
                try:
                    run = await export_run(access.store, run_id)
                except (CorruptCheckpoint, UnsupportedVersion, RunNotFound) as error:
                    code = max(code, reported(access, run_id, error))
                    continue
                file.writelines(write_exported(run))
                count += 1
    except OSError as error:
        raise BadUse(f"cannot write {output}: {error.strerror}. Nothing was deleted") from error
    if delete:
        async for infos, deleted in delete_archived(access.store, infos_in(output)):
            for info in infos:
                is_deleted = info.run_id in deleted
                code = code if is_deleted else max(code, ExitCode.CHECKPOINT_ERROR)
                _say_archived(access, info.run_id, is_deleted)
    lines = [f"{counted(count, 'run')} written to {output}"]
    return Answer(
        None if delete else {"archived": count}, lines, left_out(selection.problems), code
    )


def _say_archived(access: Access, run_id: str, is_deleted: bool) -> None:
    if access.as_json:
        print_json({"run_id": run_id, "deleted": is_deleted}, on_one_line=True)
    elif is_deleted:
        say(f"{run_id}: archived and deleted")
    else:
        say(
            f"{run_id}: archived, but not deleted: it has not ended, it has changed, or a parent or a "
            "schedule needs it"
        )
