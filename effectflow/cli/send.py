"""The commands that send messages to runs: cancel and send."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from effectflow.checkpoint import CheckpointStore, NotSerializable, RunInfo, RunStatus, find_run
from effectflow.cli.access import Access, to_runs, to_sealed_runs, with_access
from effectflow.cli.app_loader import load_signal
from effectflow.cli.options import BadUse, JsonOption, LatestOption, RunArgument, read_json
from effectflow.cli.render import print_json, say
from effectflow.cli.suggestions import suggested
from effectflow.service.client import request_cancel, send_value


@with_access(to_sealed_runs)
def cancel(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Request that a run ends: its finalizers and compensations run, and it is cancelled.

    The worker that drives the run does that, or the next one. The process that has begun the run without
    a worker, such as `effectflow run`, does not notice the request: stop it, and then `effectflow resume`
    does it.
    """

    async def ask(opened: CheckpointStore, chosen: str) -> tuple[str, RunInfo | None]:
        await request_cancel(access.checkpoints, chosen)
        return chosen, await find_run(opened, chosen)

    chosen, info = access.use_run(run_id, latest, ask)
    _report(chosen, info, "was asked to cancel itself", as_json=as_json)
    if as_json or info is None:
        return
    if info.is_resumable(time.time()):
        say(
            "No process drives it, so the request is pending: the next worker that takes the run carries "
            f"it out. Without workers, this does: {suggested('resume', chosen)}"
        )
    elif access.app is None and info.summary.status is RunStatus.RUNNING:
        say(
            "If a worker drives it, the worker carries the request out. A process that has begun it "
            "without a worker, such as that of `effectflow run`, does not notice the request: stop it. "
            f"Then this carries the request out: {suggested('resume', chosen)}"
        )


@with_access(to_runs)
def send(
    run_id: Annotated[
        str,
        typer.Argument(metavar="RUN_ID", help="The id of the run, as `effectflow list` shows it."),
    ],
    signal: Annotated[
        str, typer.Argument(metavar="MODULE:SIGNAL", help="Where the program defines the signal.")
    ],
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value: JSON, or @FILE.")],
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The run receives one value with this key, however often it is sent."),
    ] = None,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Send the value of a signal to a run, which receives it where it waits for the signal."""
    # Imported late, because pydantic takes longer than most commands.
    from effectflow.cli.structured_input import structure_as

    loaded = load_signal(signal)
    checkpoints = access.checkpoints
    try:
        made = structure_as(
            loaded.type, read_json(value, "value"), checkpoints.value_options, what="the value"
        )
    except ValueError as error:
        raise BadUse(f"signal {loaded.name!r}: {error}") from error

    async def deliver(opened: CheckpointStore) -> RunInfo | None:
        await send_value(checkpoints, run_id, loaded, made, idempotency_key=idempotency_key)
        return await find_run(opened, run_id)

    try:
        info = access.use(deliver)
    except NotSerializable as error:
        raise BadUse(str(error)) from error
    _report(run_id, info, f"was sent signal {loaded.name!r}", as_json=as_json)


def _report(run_id: str, info: RunInfo | None, what: str, *, as_json: bool) -> None:
    status = None if info is None else str(info.summary.status)
    if as_json:
        print_json({"run_id": run_id, "status": status})
    else:
        say(f"Run {run_id} {what}. Its status is {status or 'deleted'}.")
