"""`effectflow list`: find runs, and show them as a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    RunInfo,
    RunStatus,
)
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.values import Tree, cut
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.filters import (
    BeforeOption,
    ContextOption,
    ParentOption,
    QueueOption,
    SinceOption,
    StatusOption,
    WorkflowOption,
    check_is_known,
    left_out,
    read_filters,
)
from effectflow.cli.options import BadUse, ExitCode
from effectflow.cli.render import age, say_lines, table, terminal_width
from effectflow.cli.suggestions import suggested
from effectflow.effects.clock import in_words
from effectflow.observe.recent_runs import RecentRuns
from effectflow.observe.run_filters import RunFilters
from effectflow.observe.statuses import error_of, shown_status


@command(ServiceOption)
def list_runs(
    access: Access,
    workflow: WorkflowOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    context: ContextOption = None,
    queue: QueueOption = None,
    parent: ParentOption = None,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Only runs that can be resumed.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the table again every two seconds, until Ctrl-C.")
    ] = False,
) -> Answer:
    """List the runs of a store, newest first."""
    if watch and access.as_json:
        raise BadUse("--watch shows a table: leave out --json")
    filters = read_filters(
        workflow=workflow,
        status=status,
        since=since,
        before=before,
        context=context,
        queue=queue,
        parent=parent,
        resumable=resumable,
    )
    watched = RecentRuns(access.checkpoints) if watch else None

    async def find(_: CheckpointStore) -> Answer:
        return await _find(access, filters, limit, watched)

    console = Console()
    while watch:
        try:
            answer = access.use(find)
            console.clear()
            say_lines((*answer.lines, *answer.problems), console)
            time.sleep(_SECONDS_BETWEEN_TABLES)
        except KeyboardInterrupt:
            return Answer(None)
    return access.use(find)


_SECONDS_BETWEEN_TABLES = 2.0


async def _find(
    access: Access, filters: RunFilters, limit: int, watched: RecentRuns | None
) -> Answer:
    """Return the runs that match. Raise BadUse if the store has no run of the workflow at all."""
    now, unreadable = time.time(), list[CheckpointError]()
    found = filters.runs(access.checkpoints, unreadable, now=now, limit=limit + 1)
    runs = [info async for info in found]
    if not runs:
        await check_is_known(access.store, filters.query.workflow)
    problems = left_out(unreadable)
    code = ExitCode.CHECKPOINT_ERROR if problems else ExitCode.DONE
    if len(runs) > limit:
        problems.insert(0, f"There are more runs than {limit}: --limit shows more.")
        del runs[limit:]
    if runs:
        notes = await _notes(runs, now, watched)
        lines = _table_lines(runs, notes, now)
    elif filters == RunFilters():
        is_new = access.origin.startswith("DEFAULT")
        lines = ["This store has no runs." + (" `effectflow demo` starts one." if is_new else "")]
    else:
        lines = [f"No run matches; `{suggested('list')}` shows all runs."]
    return Answer([run_tree(info, now) for info in runs], lines, problems, code)


def _table_lines(runs: Sequence[RunInfo], notes: Sequence[str], now: float) -> Iterable[str]:
    """Yield a table of runs. On a terminal, notes end at its edge, if that leaves something of them.

    With names of ordinary length, the other columns fit 80 columns.
    """
    rows = [("RUN", "WORKFLOW", "STATUS", "ENTRIES", "UPDATED", "")]
    for run, note in zip(runs, notes, strict=True):
        status = shown_status(run, now)
        if run.summary.details.dead_letters:
            status += f", {run.summary.details.dead_letters} dead"
        updated = age(now - run.updated_at)
        rows.append((run.run_id, run.summary.workflow, status, str(run.length), updated, note))
    width = terminal_width()
    for line, (*_, note) in zip(table(rows), rows, strict=True):
        is_cut = width < cell_len(line) <= width + cell_len(note) - 12
        yield f"{set_cell_size(line, width - 3)}..." if is_cut else line


async def _notes(runs: Sequence[RunInfo], now: float, watched: RecentRuns | None) -> list[str]:
    """Return what else there is to say about each run; of those that are watched, how far they are."""
    if watched is None:
        return [_note(info, now) for info in runs]
    # Imported late, because it knows the builders.
    from effectflow.observe.jobs import progress_of

    return [_note(info, now) or await progress_of(watched, info, now) for info in runs]


def _note(info: RunInfo, now: float) -> str:
    """Return why a run does not continue now, or ""."""
    summary = info.summary
    if summary.status is RunStatus.FAILED:
        return cut(error_of(info), 60)
    left = None if summary.due_at is None else summary.due_at - now
    if summary.details.blocked:
        again = "now" if left is None or left <= 0 else f"in {in_words(left)}"
        return cut(f"tried again {again}: {summary.details.blocked}", 80)
    if summary.details.waits_for:
        what = summary.details.waits_for
        how_long = "in" if what in ("a time", "a retry") else "at most"
        until = "" if left is None else f", {how_long} {in_words(left)}" if left > 0 else "; is due"
        return f"waits for {what}{until}"
    if summary.status is RunStatus.PENDING and left is not None and left > 0:
        return f"begins in {in_words(left)}"
    return ""


def run_tree(info: RunInfo, now: float) -> dict[str, Tree]:
    """Return one line about a run as plain data."""
    summary, owner = info.summary, info.process or None
    return {
        "run_id": info.run_id,
        "workflow": summary.workflow,
        "kind": summary.details.kind,
        "version": summary.details.version,
        "status": shown_status(info, now),
        "waits_for": summary.details.waits_for or None,
        "due_at": iso_time(summary.due_at),
        "blocked": summary.details.blocked or None,
        "error": summary.details.error or None,
        "owner": owner if info.is_held(now) else None,
        "last_owner": owner,
        "parent": summary.parent or None,
        "priority": summary.priority,
        "queue": summary.queue or None,
        "key": summary.key or None,
        "dead_letters": summary.details.dead_letters,
        "resumable": info.is_resumable(now),
        "created_at": iso_time(summary.created_at),
        "updated_at": iso_time(info.updated_at),
        "entries": info.length,
    }
