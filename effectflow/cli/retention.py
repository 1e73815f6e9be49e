"""The commands that remove runs: delete and prune."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from effectflow.checkpoint import RunStatus
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.filters import WorkflowOption, check_is_known, read_time
from effectflow.cli.options import BadUse
from effectflow.cli.render import counted
from effectflow.cli.selection import (
    DryRunOption,
    YesOption,
    command_on_runs,
    confirm,
    show_one,
    would,
)
from effectflow.observe.run_filters import MOST_COUNTED, Counted
from effectflow.runs.retention import check_rule, delete_run, ended_runs, prunable, prune_runs


@command_on_runs(ServiceOption, verb="delete", keys=False)
async def delete(access: Access, run_id: str) -> Answer:
    """Delete runs with their journals and messages. Runs that they have spawned continue.

    Nothing of a run is undone: to let one that has not ended undo its work, cancel it first. A run that a
    process drives is not deleted, nor one that another run has spawned and may wait for.
    """
    await delete_run(access.checkpoints, run_id)
    return Answer({"run_id": run_id, "deleted": True}, [f"Run {run_id} was deleted."])


@command(ServiceOption, keys=False)
async def prune(
    access: Access,
    before: Annotated[
        str | None,
        typer.Option(help="Only runs that ended before then: 2h or 30d ago, or a date and time."),
    ] = None,
    status: Annotated[
        RunStatus | None,
        typer.Option(
            metavar="STATUS",
            help="Only runs that are completed, cancelled or failed. By default, completed and "
            "cancelled ones.",
        ),
    ] = None,
    workflow: WorkflowOption = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Keep this many of the newest of these runs.")
    ] = 0,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> Answer:
    """Delete ended runs that are old, in small batches.

    A run that has not ended is never deleted, nor one whose parent has not ended, nor the newest run of a
    schedule. It is safe beside workers.
    """
    try:
        moment = None if before is None else read_time(before, "--before")
        rule = ended_runs(workflow, status, moment)
        check_rule(rule, keep)
    except ValueError as error:
        raise BadUse(f"{error}. The options are --before, --keep and --status") from error
    await check_is_known(access.store, workflow)
    count, now = 0, time.time()
    if dry_run or not yes:
        async for page in prunable(access.store, rule, keep):
            count += len(page)
            if dry_run:
                for info in page:
                    show_one(access, info, "delete", now)
            elif count > MOST_COUNTED:
                break
    if dry_run:
        return Answer(None, [would("delete", count)])
    if not yes:
        confirm("delete", Counted(count, count > MOST_COUNTED))
    deleted = await prune_runs(access.checkpoints, rule, keep)
    return Answer({"deleted": deleted}, [f"{counted(deleted, 'run')} deleted"])
