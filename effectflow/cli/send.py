"""The commands that send messages to runs: cancel and send."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer

from effectflow.checkpoint import (
    CheckpointError,
    NotSerializable,
    RunInfo,
    find_run,
    read_checkpoint,
)
from effectflow.cli.access import Access, CodeOption, ServiceOption
from effectflow.cli.app_loader import load_signal
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ByOption, read_json
from effectflow.cli.selection import command_on_runs
from effectflow.cli.suggestions import suggested
from effectflow.runs.control import asker
from effectflow.service.sending import request_cancel, send_value


@command_on_runs(ServiceOption, verb="cancel")
async def cancel(access: Access, run_id: str, by: ByOption = None) -> Answer:
    """Request that runs end: their finalizers and compensations run, and they are cancelled.

    The process that drives a run does that, or the next worker.
    """
    await request_cancel(access.checkpoints, run_id, by=by or asker())
    info = await find_run(access.store, run_id)
    lines = [_sentence(run_id, info, "was asked to cancel itself")]
    if info is not None and info.is_resumable(time.time()):
        resume = suggested("resume", run_id, module=await _module_of(access, run_id))
        lines.append(
            "No process drives it, so the request is pending: the next worker that takes the run carries "
            f"it out. Without workers, this does: {resume}"
        )
    return Answer(_tree(run_id, info), lines)


@command(CodeOption)
async def send(
    access: Access,
    run_id: Annotated[
        str,
        typer.Argument(metavar="RUN_ID", help="The id of the run, as `effectflow list` shows it."),
    ],
    signal: Annotated[
        str,
        typer.Argument(
            metavar="SIGNAL",
            help="The name of the signal, which a module of the workflows of --app defines; or "
            "MODULE:VARIABLE.",
        ),
    ],
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value: JSON, or @FILE.")],
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The run receives one value with this key, however often it is sent."),
    ] = None,
) -> Answer:
    """Send the value of a signal to a run, which receives it where it waits for the signal."""
    # Imported late, because pydantic takes longer than most commands.
    from effectflow.service.structured_input import structure_as

    loaded, checkpoints = load_signal(signal, access.app), access.checkpoints
    data = read_json(value, "value")
    try:
        made = structure_as(loaded.type, data, checkpoints.value_options, what="the value")
    except ValueError as error:
        raise BadUse(f"signal {loaded.name!r}: {error}") from error
    try:
        await send_value(checkpoints, run_id, loaded, made, idempotency_key=idempotency_key)
    except NotSerializable as error:
        raise BadUse(str(error)) from error
    info = await find_run(access.store, run_id)
    return Answer(
        _tree(run_id, info), [_sentence(run_id, info, f"was sent signal {loaded.name!r}")]
    )


async def _module_of(access: Access, run_id: str) -> str | None:
    """Return the module with the workflow of a run; None if its journal cannot be read."""
    with suppress(CheckpointError):
        return (await read_checkpoint(access.store, run_id, access.seal)).module
    return None


def _tree(run_id: str, info: RunInfo | None) -> dict[str, str | None]:
    return {"run_id": run_id, "status": info and str(info.summary.status)}


def _sentence(run_id: str, info: RunInfo | None, what: str) -> str:
    status = "deleted" if info is None else info.summary.status
    return f"Run {run_id} {what}. Its status is {status}."
