"""`effectflow show`: one run, its checkpoint, and what the store has about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from effectflow.builders.kinds import job_progress, view_of
from effectflow.builders.progress import JobProgress
from effectflow.checkpoint import (
    Checkpoint,
    Entry,
    Failed,
    NotSerializable,
    Published,
    RunInfo,
    RunStatus,
    RunSummary,
    find_run,
)
from effectflow.checkpoint.checkpoint import fold, iso_time
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.values import Tree, bounded, cut, plain_tree
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.list_runs import run_tree
from effectflow.cli.options import BadUse, LatestOption
from effectflow.cli.render import age, counted, table, when
from effectflow.cli.step_lines import step_lines
from effectflow.cli.suggestions import message_of, suggested
from effectflow.observe.mailbox import WaitingMessage, read_mailbox
from effectflow.observe.operations import operations_of
from effectflow.observe.spawned_runs import SpawnedRun, read_spawned, spawned_by
from effectflow.observe.statuses import shown_status
from effectflow.runs.reopening import dead_letters_of


@command(ServiceOption, latest=LatestOption)
async def show(
    access: Access,
    run_id: str,
    at: Annotated[
        int | None, typer.Option(min=1, help="Show the run as it was after this many entries.")
    ] = None,
) -> Answer:
    """Show the state of a run, now or after an earlier entry.

    With --json, its steps have no `output` if these have more than 64 MiB together.
    """
    try:
        view = await _view_of(access, run_id, at=at)
    except ValueError as error:
        raise BadUse(str(error)) from error
    return Answer(_view_tree(view), _view_lines(view))


@dataclass(frozen=True, slots=True)
class _RunView:
    """The view of a run.

    Attributes:
        checkpoint: its state, now or after an earlier entry.
        entries: its entries until then.
        published: what it had published until then, by key.
        dead_letters: how many items of its jobs were set aside.
        durability: the failures that its store survives.
        at: the time of the view, in seconds since the epoch.
        info: the run as it is now; None for an earlier state, of which the store knows nothing else.
        children: the runs that it has spawned.
        mailbox: the messages that it has not taken.
    """

    checkpoint: Checkpoint
    entries: Sequence[Entry]
    published: dict[str, Tree]
    dead_letters: int
    durability: str
    at: float
    info: RunInfo | None = None
    children: Sequence[SpawnedRun] = ()
    mailbox: Sequence[WaitingMessage] = ()


async def _view_of(access: Access, run_id: str, *, at: int | None) -> _RunView:
    """Return the view of a run, now or after its first `at` entries.

    Raise ValueError if it has fewer entries.
    """
    store, now = access.store, time.time()
    entries = await read_existing(store, run_id, access.seal, at=at)
    view = _RunView(
        fold(entries, run_id),
        entries=entries,
        published={one.key: one.value for one in entries if isinstance(one, Published)},
        dead_letters=len(dead_letters_of(read_order(entries))),
        durability=store.durability,
        at=now,
    )
    if at is not None:
        return view
    return replace(
        view,
        info=await find_run(store, run_id),
        children=await read_spawned(store, spawned_by(entries), now),
        mailbox=await read_mailbox(access.checkpoints, run_id),
    )


def _view_lines(view: _RunView) -> Iterable[str | Text]:
    """Yield the view of one run as text, and the commands that show more."""
    yield from table(_rows(view))
    if operations := operations_of(view.entries):
        is_held = view.info is None or view.info.is_held(view.at)
        yield f"steps, since {when(operations[0].began)[:10]}:"
        yield from step_lines(operations, view.at, is_held=is_held)
    yield from _lines_around(view)
    finished = view.checkpoint.finished
    if finished is None:
        return
    yield ""
    if finished.error is None:
        yield f"output: {bounded(finished.output, 2000)}"
        return
    error = finished.error
    yield from (error.traceback or f"{error.type}: {error.message}").rstrip().split("\n")
    yield from (f"  {line}" for line in error.trail)


_SURVIVES = {
    "full": "kill -9 and power loss (durability full)",
    "process": "kill -9, not power loss (durability process)",
}


def _rows(view: _RunView) -> Iterable[tuple[str, str]]:
    """Yield the names and values of the table."""
    checkpoint, info = view.checkpoint, view.info
    metadata, head = checkpoint.metadata, checkpoint.state
    yield "run", checkpoint.run_id
    yield "workflow", f"{checkpoint.workflow} (version {checkpoint.definition.version})"
    yield "module", checkpoint.module or "unknown"
    if checkpoint.forked_from:
        yield "forked from", checkpoint.forked_from
    yield "status", str(checkpoint.status) if info is None else shown_status(info, view.at)
    if info is not None:
        if info.summary.details.error and (
            checkpoint.finished is None or checkpoint.finished.error is None
        ):
            yield "error", info.summary.details.error
        if info.process:
            yield "owner" if info.is_held(view.at) else "last owner", info.process
        yield from _summary_rows(info.summary, checkpoint.suspended_at, view.at)
    if (paused := checkpoint.paused) is not None:
        yield "paused", f"by {paused.by}, since {when(paused.at)}"
    if head is None:
        yield "position", "before its first step"
    elif not (checkpoint.status is RunStatus.COMPLETED and isinstance(head, Failed)):
        # A complete run has handled the failure of its last step. And a run may be interrupted while it
        # waits between two steps.
        yield "position", f"{type(head).__name__}: {head.step or 'no step'}"
    for name, text in view_of(checkpoint.kind).rows(checkpoint):
        yield name, cut(text)
    is_running = info is not None and shown_status(info, view.at) == RunStatus.RUNNING
    yield from _progress_rows(job_progress(checkpoint), is_running=is_running)
    if view.dead_letters:
        yield "dead letters", f"{view.dead_letters}: {suggested('dead-letters', checkpoint.run_id)}"
    yield "steps", f"{len(checkpoint.completed_steps)} completed, {len(metadata.attempts)} begun"
    yield "resumes", str(metadata.resumes)
    yield "entries", str(metadata.entries)
    yield "created", when(checkpoint.created_at)
    yield "updated", when(checkpoint.updated_at)
    yield "input", bounded(checkpoint.initial_state)
    yield "context", bounded(checkpoint.context)
    yield "survives", _SURVIVES.get(view.durability, f"durability {view.durability}")


def _progress_rows(progress: JobProgress | None, *, is_running: bool) -> Iterable[tuple[str, str]]:
    """Yield the progress of the job of a run."""
    if progress is None or (progress.iteration is not None and not progress.items_total):
        return
    total = "" if progress.items_total is None else f" of {progress.items_total}"
    failed = f", {progress.items_failed} failed" if progress.items_failed else ""
    left = f", {progress.left}" if is_running and progress.left else ""
    yield "items", f"{progress.items_done}{total} done{failed}{left}"
    if progress.is_reduced:
        yield "phase", progress.phase
        groups = counted(progress.groups_done, "group")
        yield "reduce", f"round {progress.reduce_round}, {groups} done"


def _summary_rows(
    summary: RunSummary, suspended_at: float | None, now: float
) -> Iterable[tuple[str, str]]:
    """Yield what the store knows about a run as it is now."""
    details = summary.details
    due = "" if summary.due_at is None else when(summary.due_at)
    if details.waits_for and suspended_at is not None:
        # A blocked run is due when workers try it again, which says nothing about its wait.
        until = f", until {due}" if due and not details.blocked else ""
        if summary.due_at is not None and summary.due_at <= now and not details.blocked:
            until = "; it is due, and continues as soon as a worker takes it"
        yield "waits for", f"{details.waits_for}, since {when(suspended_at)}{until}"
    if details.blocked:
        yield "blocked", f"{details.blocked} (tried again at {due})"
    if summary.status is RunStatus.PENDING and summary.due_at is not None:
        # A run that is due at once has a due time far in the past.
        begins = when(max(summary.due_at, summary.created_at))
        yield "begins", f"at {begins}, priority {summary.priority}"
    if summary.queue or summary.key:
        yield "queue", f"{summary.queue_name}{summary.key and f', key {summary.key}'}"
    if summary.parent:
        yield "parent", summary.parent


_MOST_CHILDREN = 20


def _lines_around(view: _RunView) -> Iterable[str]:
    """Yield a line for each value that a run has published, its children, and its messages."""
    if view.published:
        yield "published:"
        yield from (f"  {key} = {bounded(value)}" for key, value in view.published.items())
    if view.children:
        yield f"{counted(len(view.children), 'run')} within this one:"
        for child in view.children[:_MOST_CHILDREN]:
            status = child.status or "not in this store"
            yield f"  {child.run_id} of {child.workflow}: {status}"
        if len(view.children) > _MOST_CHILDREN:
            yield f"  and others: {suggested('list', '--parent', view.checkpoint.run_id)}"
    if view.mailbox:
        yield f"{counted(len(view.mailbox), 'message')} not taken yet:"
        for waiting in view.mailbox:
            sent = age(view.at - waiting.message.sent_at)
            yield f"  {waiting.subject}{_value_text(waiting)}, sent {sent}"


def _value_text(waiting: WaitingMessage) -> str:
    if waiting.problem is not None:
        return f" ({message_of(waiting.problem)})"
    return f" = {bounded(waiting.value)}" if waiting.has_value else ""


def _saved(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as plain data; its steps without `output` if these are too long together."""
    try:
        return orjson.loads(checkpoint.to_json())
    except NotSerializable:
        steps = tuple(replace(step, output=None) for step in checkpoint.completed_steps)
        tree = orjson.loads(replace(checkpoint, completed_steps=steps).to_json())
        for step in tree["completed_steps"]:
            del step["output"]
        return tree


def _view_tree(view: _RunView) -> Tree:
    """Return the view of one run as plain data, with the progress of a job."""
    checkpoint = view.checkpoint
    tree = {
        **_saved(checkpoint),
        "dead_letters": view.dead_letters,
        "published": {key: plain_tree(value) for key, value in view.published.items()},
    }
    if view.info is not None:
        now = run_tree(view.info, view.at)
        tree |= {name: now[name] for name in _AS_IT_IS_NOW}
        tree["children"] = [asdict(one) for one in view.children]
        tree["mailbox"] = [
            {
                "topic": one.message.topic,
                "key": one.message.key,
                "value": plain_tree(one.value),
                "problem": message_of(one.problem) if one.problem else None,
                "sent_at": iso_time(one.message.sent_at),
            }
            for one in view.mailbox
        ]
    progress = job_progress(checkpoint)
    return tree if progress is None else {**tree, "progress": asdict(progress)}


_AS_IT_IS_NOW = (
    "status",
    "waits_for",
    "due_at",
    "blocked",
    "error",
    "owner",
    "last_owner",
    "parent",
    "priority",
    "queue",
    "key",
    "resumable",
)
