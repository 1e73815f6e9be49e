"""The options that say which runs a command is about, and what finds these runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from effectflow.checkpoint import CheckpointError, CheckpointStore, RunQuery
from effectflow.cli.options import BadUse
from effectflow.cli.suggestions import message_of
from effectflow.observe.run_filters import RunFilters, read_moment, read_run_filters
from effectflow.observe.statuses import STATUSES

WorkflowOption = Annotated[str | None, typer.Option(help="Only runs of this workflow.")]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STATUS",
        help=f"Only runs that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}. Repeat it for several.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(help="Only runs updated since then: 30m, 2h or 7d ago, or a date and time."),
]
BeforeOption = Annotated[
    str | None,
    typer.Option(help="Only runs not updated since then: 2h or 30d ago, or a date and time."),
]
ContextOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Only runs with this in their context. Repeat it for several. Stores find runs by their "
        "tenant; for other keys, this reads the runs one after the other.",
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option(
        help="Only runs of this queue. Stores do not find runs by it: this looks at them one after the "
        "other."
    ),
]
ParentOption = Annotated[
    str | None, typer.Option(metavar="RUN_ID", help="Only runs within this run.")
]
FILTERS = {
    "workflow": WorkflowOption,
    "status": StatusOption,
    "since": SinceOption,
    "before": BeforeOption,
    "context": ContextOption,
    "queue": QueueOption,
    "parent": ParentOption,
}
"""The options by the names of the parameters of `read_filters`. Each is None unless it is given."""

_NAMED = 500
"""The workflows of this many runs are named."""


def read_filters(**given: Any) -> RunFilters:
    """Return what the options ask for. Raise BadUse for what they do not take."""
    try:
        return read_run_filters(now=time.time(), **given)
    except ValueError as error:
        raise BadUse(f"--{error}") from error


def read_time(text: str, option: str) -> float:
    """Return the time that an option names, in seconds since the epoch. Raise BadUse for other text."""
    try:
        return read_moment(text, option, time.time())
    except ValueError as error:
        raise BadUse(str(error)) from error


def left_out(problems: Iterable[CheckpointError]) -> list[str]:
    """Return, for each run whose context could not be read, why it was left out."""
    return [f"effectflow: its context is unknown: {message_of(error)}" for error in problems]


async def check_is_known(store: CheckpointStore, workflow: str | None) -> None:
    """Raise BadUse, which lists those of the newest runs, if the store has no run of this workflow."""
    if workflow is None or await store.find(RunQuery(workflow=workflow, limit=1)):
        return
    if newest := await store.find(RunQuery(limit=_NAMED)):
        names = ", ".join(sorted({info.summary.workflow for info in newest}))
        raise BadUse(
            f"this store has no run of workflow {workflow!r}; its newest runs are of: {names}"
        )
