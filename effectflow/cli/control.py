"""The commands that hold runs and let them go on: pause, unpause, retry and rerun."""

from __future__ import annotations

from effectflow.checkpoint import RunStatus, find_run, read_checkpoint
from effectflow.cli.access import Access, CodeOption, ServiceOption
from effectflow.cli.app_loader import workflow_of_run
from effectflow.cli.command import Answer
from effectflow.cli.options import ByOption
from effectflow.cli.selection import command_on_runs
from effectflow.cli.suggestions import suggested
from effectflow.effects.clock import SystemClock
from effectflow.runs.control import asker, pause_run, retry_run, unpause_run
from effectflow.service.client import Client


@command_on_runs(ServiceOption, verb="pause")
async def pause(access: Access, run_id: str, by: ByOption = None) -> Answer:
    """Let nothing continue runs until they are unpaused. Steps in progress end first."""
    who = by or asker()
    await pause_run(access.checkpoints, run_id, by=who, clock=SystemClock())
    info = await find_run(access.store, run_id)
    status = RunStatus.PAUSED if info is None else info.summary.status
    said = f"Run {run_id}: paused by {who}."
    if status is not RunStatus.PAUSED:
        said = f"Run {run_id}: {who} asked its process to pause it once its steps in progress end."
    return Answer({"run_id": run_id, "status": str(status), "by": who}, [said])


@command_on_runs(ServiceOption, verb="unpause")
async def unpause(access: Access, run_id: str, by: ByOption = None) -> Answer:
    """Let workers continue paused runs, at the time when they are due.

    Without workers, `effectflow resume` continues a run.
    """
    who = by or asker()
    await unpause_run(access.checkpoints, run_id, by=who, clock=SystemClock())
    said = f"Run {run_id}: unpaused by {who}. A worker continues it when it is due."
    return Answer({"run_id": run_id, "by": who}, [said])


@command_on_runs(ServiceOption, verb="retry")
async def retry(access: Access, run_id: str, by: ByOption = None) -> Answer:
    """Let the next worker try runs again that have failed, are blocked, or were interrupted.

    Without workers, `effectflow resume` continues a run.
    """
    who = by or asker()
    await retry_run(access.checkpoints, run_id, by=who, clock=SystemClock())
    said = f"Run {run_id}: retried by {who}. The next worker continues it."
    return Answer({"run_id": run_id, "by": who}, [said])


@command_on_runs(CodeOption, verb="rerun")
async def rerun(access: Access, run_id: str, by: ByOption = None) -> Answer:
    """Make new runs with the same inputs as other ones, which stay as they are.

    The next worker drives a new run, or `effectflow resume` does.
    """
    known = await read_checkpoint(access.store, run_id, access.seal)
    loaded = workflow_of_run(run_id, known.workflow, access.app, known.module)
    client = Client(access.checkpoints, by=by)
    made = await client.handle(loaded.to_start, run_id).rerun()
    resume = suggested("resume", made.run_id, module=known.module)
    return Answer(
        {"run_id": made.run_id, "forked_from": run_id, "by": client.by},
        [f"Run {made.run_id} was made from run {run_id}. Without workers, start it with: {resume}"],
    )
