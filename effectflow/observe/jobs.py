"""How far running jobs have got, in words."""

from __future__ import annotations

from effectflow.builders.kinds import job_progress
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.run_info import RunInfo, RunStatus
from effectflow.observe.recent_runs import RecentRuns
from effectflow.observe.statuses import shown_status


async def progress_of(runs: RecentRuns, info: RunInfo, now: float) -> str:
    """Return how far a run that is driven has got with the items of its job; "" without a job.

    Parameters:
        runs: reads the run.
        info: the run.
        now: the time, in seconds since the epoch.
    """
    if shown_status(info, now) != RunStatus.RUNNING:
        return ""
    try:
        run = await runs.read(info.run_id)
    except CheckpointError:
        return ""
    job = job_progress(run.checkpoint)
    return "" if job is None else ", ".join(filter(None, (str(job), job.left)))
