"""The statuses of runs as people see them: as recorded, and `crashed`."""

from __future__ import annotations

import re

from effectflow.checkpoint.run_info import RunInfo, RunStatus

CRASHED = "crashed"
"""The status of a run that is recorded as running, but is not held by a live process."""


def shown_status(run: RunInfo, now: float) -> str:
    """Return the status of a run as people see it: the recorded status, or `crashed`."""
    return status_text(run.summary.status, is_held=run.is_held(now))


def status_text(status: RunStatus, *, is_held: bool) -> str:
    """Return a status as people see it, of a run that a live process holds or not."""
    return CRASHED if status is RunStatus.RUNNING and not is_held else str(status)


STATUSES = tuple(
    shown
    for status in RunStatus
    for shown in ((status, CRASHED) if status is RunStatus.RUNNING else (status,))
)
"""All statuses that people see, and look for."""

_QUALIFIED = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")


def error_of(run: RunInfo) -> str:
    """Return the error that a run has failed with, in one line, without the module of its class."""
    return _QUALIFIED.sub("", run.summary.details.error)
