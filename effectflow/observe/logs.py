"""Filters for `logging`: which run and step a record is about, and no record twice after a resume.

Put them on a handler, not on a logger: the filters of a logger do not see the records of its children.
"""

from __future__ import annotations

import logging
from typing import TypedDict

from effectflow.checkpoint.current_life import current_life, replaying
from effectflow.checkpoint.step import CurrentStep
from effectflow.effects.scope import running_step


class Fields(TypedDict):
    """What `run_fields` returns.

    Attributes:
        run_id, workflow: the run and the name of its workflow; empty outside of runs.
        step: the path of the step; empty between steps.
        attempt: the number of the attempt of the step, from 1; 0 between steps.
        worker: the process that drives the run, as in `RunInfo.lease`; empty if none does.
    """

    run_id: str
    workflow: str
    step: str
    attempt: int
    worker: str


def run_fields() -> Fields:
    """Return which run, workflow, step, attempt and worker the running code belongs to.

    In the process of an executor, the workflow and the worker are not known.

    Example:
        >>> from effectflow.observe import run_fields
        >>> run_fields()
        {'run_id': '', 'workflow': '', 'step': '', 'attempt': 0, 'worker': ''}
    """
    turns, step = current_life.get(), running_step.get()
    run_id = workflow = path = worker = ""
    attempt = 0
    if turns is not None:
        run = turns.run
        run_id, workflow = run.run_id, run.workflow
        # A plan has no lease.
        if run.planning is None:
            worker = run.writer.lease.owner
    if isinstance(step, CurrentStep):
        info = step.info
        # A step that starts another run is not a step of that one.
        if turns is None or info.run_id == run_id:
            run_id, path, attempt = info.run_id, info.step, info.attempt
    return {
        "run_id": run_id,
        "workflow": workflow,
        "step": path,
        "attempt": attempt,
        "worker": worker,
    }


class RunFields(logging.Filter):
    """Adds `run_fields()` to every record: `handler.addFilter(RunFields())`.

    The records of your code get the fields, those of effectflow, and those of libraries that your steps
    call. A field that a record has already, by `extra`, stays as it is.

    Example:
        >>> import logging
        >>> from effectflow.observe import RunFields
        >>> handler = logging.StreamHandler()
        >>> handler.addFilter(RunFields())
        >>> handler.setFormatter(logging.Formatter("%(run_id)s %(step)s#%(attempt)s: %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. Keep the record."""
        known = record.__dict__
        for name, value in run_fields().items():
            known.setdefault(name, value)
        return super().filter(record)


class ReplayFilter(logging.Filter):
    """Drops the records that a replay repeats: `handler.addFilter(ReplayFilter())`.

    These are the records of your code and the libraries that it calls, and those of `effectflow.effects`
    about it. What stores and the engine log during a replay is new. A line that a process logged just
    before its death may be logged again.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is new."""
        return super().filter(record) and not (_is_about_code(record.name) and replaying())


def _is_about_code(logger: str) -> bool:
    return not logger.startswith("effectflow.") or logger.startswith("effectflow.effects.")
