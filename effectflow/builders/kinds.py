"""The kinds of workflows, and what their builders say about their runs."""

from __future__ import annotations

from importlib import import_module

from effectflow.builders.progress import JobPhase, JobProgress, history_of, progress_of
from effectflow.builders.views import View
from effectflow.checkpoint.checkpoint import Checkpoint

_HOMES = {
    "graph": "graph._structure",
    "iterative": "iterative",
    "machine": "machine._machine",
    "mapreduce": "mapreduce._job",
}
"""The module that has the `VIEW` of a kind. Code and lists of steps have the default."""


def view_of(kind: str) -> View:
    """Return what the builder of this kind of workflow says about its runs."""
    home = _HOMES.get(kind)
    return View() if home is None else import_module(f"effectflow.builders.{home}").VIEW


def job_progress(checkpoint: Checkpoint) -> JobProgress | None:
    """Return the progress of the job of a run; None without a job. Pure.

    That is the map-reduce that the run is, or the one in the current round of an iterative run. For other
    workflows, it is the job that has begun a step last: a map-reduce within the run, or a `par_traverse`,
    `par_all` or `par_try_all`. It is "complete" once the run is.
    """
    return progress_of(checkpoint, view_of(checkpoint.kind).job(checkpoint))


def job_history(checkpoint: Checkpoint) -> tuple[JobPhase, ...]:
    """Return when the phases of a job happened that have begun, in order. Pure.

    The job is that of `job_progress`; without one the history is empty.
    """
    return history_of(checkpoint, view_of(checkpoint.kind).job(checkpoint))
