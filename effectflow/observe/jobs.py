"""How far running jobs have got, in words."""

from __future__ import annotations

from effectflow.builders.kinds import job_progress
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.journal_reader import read_checkpoint
from effectflow.checkpoint.store import RunInfo, RunStatus
from effectflow.observe.statuses import shown_status

_MOST_KNOWN = 1000


class Jobs:
    """Tells how far running runs have got with the items of their jobs.

    Parameters:
        checkpoints: where the runs are.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._known: dict[str, tuple[int, str]] = {}

    async def of(self, info: RunInfo, now: float) -> str:
        """Return the progress of a run in words; "" without a job. Read its journal only if it grew."""
        if shown_status(info, now) != RunStatus.RUNNING:
            return ""
        length, text = self._known.get(info.run_id, (0, ""))
        if length != info.length:
            store, seal = self._checkpoints.store, self._checkpoints.seal
            try:
                checkpoint = await read_checkpoint(store, info.run_id, seal)
            except CheckpointError:
                return ""
            job = job_progress(checkpoint)
            text = "" if job is None else ", ".join(filter(None, (str(job), job.left)))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[info.run_id] = info.length, text
        return text
