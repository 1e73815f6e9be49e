"""`effectflow show`: one run, its checkpoint, and what the store has about it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import orjson
import typer
from rich.console import Console

from effectflow.builders.machine._machine import state_of
from effectflow.builders.progress import JobProgress, job_progress
from effectflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    CheckpointStore,
    ChildStarted,
    Failed,
    Message,
    Published,
    RunInfo,
    RunStatus,
    ServiceStore,
    find_run,
)
from effectflow.checkpoint.checkpoint import fold, iso_time
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.mailbox import open_message
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.store import CANCEL, NOTICE
from effectflow.checkpoint.values import Tree, plain_tree
from effectflow.cli.access import Access, to_runs, with_access
from effectflow.cli.history import topic_text
from effectflow.cli.list_runs import run_tree, shown_status
from effectflow.cli.options import BadUse, JsonOption, LatestOption, RunArgument
from effectflow.cli.render import (
    age,
    bounded,
    counted,
    print_json,
    say,
    say_lines,
    say_table,
    when,
)
from effectflow.cli.suggestions import message_of, suggested
from effectflow.runs.reopening import dead_letters_of


@with_access(to_runs)
def show(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    at: Annotated[
        int | None, typer.Option(min=1, help="Show the run as it was after this many entries.")
    ] = None,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a run, now or after an earlier entry."""

    async def read(opened: CheckpointStore, chosen: str) -> _RunView:
        try:
            return await _view_run(access.checkpoints, opened, chosen, at=at)
        except ValueError as error:
            raise BadUse(str(error)) from error

    view = access.use_run(run_id, latest, read)
    if as_json:
        print_json(_view_tree(view))
    else:
        _show_run(Console(), view)


@dataclass(frozen=True, slots=True)
class _ChildView:
    """A run within a run: nested in it, or spawned by it. `info` is None if it is not in the store."""

    run_id: str
    workflow: str
    info: RunInfo | None


@dataclass(frozen=True, slots=True)
class _MessageView:
    """A message that a run has not taken. `problem` says why the value is unknown."""

    message: Message
    value: Tree = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _RunView:
    """The view of a run.

    Attributes:
        checkpoint: its state, now or after an earlier entry.
        published: what it had published until then, by key.
        dead_letters: how many items of its jobs were set aside.
        durability: the failures that its store survives.
        at: the time of the view, in seconds since the epoch.
        info: the run as it is now; None for an earlier state, of which the store knows nothing else.
        children: the runs within it.
        mailbox: the messages that it has not taken.
    """

    checkpoint: Checkpoint
    published: dict[str, Tree]
    dead_letters: int
    durability: str
    at: float
    info: RunInfo | None = None
    children: list[_ChildView] = field(default_factory=list[_ChildView])
    mailbox: list[_MessageView] = field(default_factory=list[_MessageView])


async def _view_run(
    checkpoints: Checkpoints, store: CheckpointStore, run_id: str, *, at: int | None
) -> _RunView:
    """Return the view of a run, now or after its first `at` entries.

    Raise ValueError if it has fewer entries.
    """
    entries = await read_existing(store, run_id, checkpoints.seal, at=at)
    view = _RunView(
        fold(entries, run_id),
        published={one.key: one.value for one in entries if isinstance(one, Published)},
        dead_letters=len(dead_letters_of(read_order(entries))),
        durability=store.durability,
        at=time.time(),
    )
    if at is not None:
        return view
    messages = await store.mailbox(run_id) if isinstance(store, ServiceStore) else []
    # A resume starts a child again with a second entry.
    children = {one.run_id: one.workflow for one in entries if isinstance(one, ChildStarted)}
    return replace(
        view,
        info=await find_run(store, run_id),
        children=[
            _ChildView(child, of, await find_run(store, child)) for child, of in children.items()
        ],
        mailbox=[_opened(checkpoints, run_id, one) for one in messages],
    )


def _opened(checkpoints: Checkpoints, run_id: str, message: Message) -> _MessageView:
    if message.topic in (CANCEL, NOTICE):
        return _MessageView(message)
    try:
        return _MessageView(message, open_message(checkpoints, run_id, message))
    except CheckpointError as error:
        return _MessageView(message, problem=message_of(error))


def _show_run(console: Console, view: _RunView) -> None:
    """Print the view of one run, and the commands that show more."""
    checkpoint = view.checkpoint
    metadata = checkpoint.metadata
    survives = {
        "full": "kill -9 and power loss (durability full)",
        "process": "kill -9, not power loss (durability process)",
    }
    rows = {
        "run": checkpoint.run_id,
        "workflow": f"{checkpoint.workflow} (version {checkpoint.definition.version})",
        "module": checkpoint.module or "unknown",
        "status": str(checkpoint.status),
        **_summary_rows(view),
        **_position_row(checkpoint),
        **_state_row(checkpoint),
        **_progress_rows(job_progress(checkpoint)),
        **_dead_letter_row(view),
        "steps": f"{len(checkpoint.completed_steps)} completed, {len(metadata.attempts)} begun",
        "resumes": str(metadata.resumes),
        "entries": str(metadata.entries),
        "created": when(checkpoint.created_at),
        "updated": when(checkpoint.updated_at),
        "input": bounded(checkpoint.initial_state),
        "context": bounded(checkpoint.context),
        "survives": survives.get(view.durability, f"durability {view.durability}"),
        "digest": checkpoint.digest,
    }
    say_table(list(rows.items()), console)
    say_lines(_lines_around(view), console)
    finished = checkpoint.finished
    if finished is None:
        return
    if finished.error is None:
        say(f"\noutput: {bounded(finished.output, 2000)}", console)
    else:
        error = finished.error
        say(f"\n{(error.traceback or f'{error.type}: {error.message}').rstrip()}", console)
        say_lines((f"  {line}" for line in error.trail), console)


def _position_row(checkpoint: Checkpoint) -> dict[str, str]:
    """Return where a run stands. A complete run has handled the failure of its last step."""
    head = checkpoint.state
    if checkpoint.status is RunStatus.COMPLETED and isinstance(head, Failed):
        return {}
    if head is None:
        return {"position": "before its first step"}
    # A run may be interrupted while it waits between two steps.
    return {"position": f"{type(head).__name__}: {head.step or 'no step'}"}


def _state_row(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the state of a state machine; other workflows have no single state."""
    if checkpoint.kind != "machine":
        return {}
    match state_of(checkpoint):
        case {"$enum": [_, str(member)]}:
            return {"state": member}
        case state:
            return {"state": bounded(state)}


def _progress_rows(progress: JobProgress | None) -> dict[str, str]:
    """Return the progress of a map-reduce or iterative run."""
    if progress is None:
        return {}
    rows = {} if progress.iteration is None else {"round": str(progress.iteration)}
    if progress.iteration is None or progress.items_done or progress.items_failed:
        total = "" if progress.items_total is None else f" of {progress.items_total}"
        failed = f", {progress.items_failed} failed" if progress.items_failed else ""
        rows["phase"] = progress.phase
        rows["items"] = f"{progress.items_done}{total} done{failed}"
        rows["reduce"] = (
            f"round {progress.reduce_round}, {counted(progress.groups_done, 'group')} done"
        )
    return rows


def _dead_letter_row(view: _RunView) -> dict[str, str]:
    if not view.dead_letters:
        return {}
    see = suggested("dead-letters", view.checkpoint.run_id)
    return {"dead letters": f"{view.dead_letters}: {see}"}


def _summary_rows(view: _RunView) -> dict[str, str]:
    """Return what the store knows about a run as it is now."""
    if view.info is None:
        return {}
    summary, rows = view.info.summary, {"status": shown_status(view.info, view.at)}
    details = summary.details
    due = "" if summary.due_at is None else when(summary.due_at)
    suspended_at = view.checkpoint.suspended_at
    if details.waits_for and suspended_at is not None:
        # A blocked run is due when workers try it again, which says nothing about its wait.
        until = f", until {due}" if due and not details.blocked else ""
        if summary.due_at is not None and summary.due_at <= view.at and not details.blocked:
            until = "; it is due, and continues as soon as a worker takes it"
        rows["waits for"] = f"{details.waits_for}, since {when(suspended_at)}{until}"
    if details.blocked:
        rows["blocked"] = f"{details.blocked} (tried again at {due})"
    if summary.status is RunStatus.PENDING and summary.due_at is not None:
        # A run that is due at once has a due time far in the past.
        begins = when(max(summary.due_at, summary.created_at))
        rows["begins"] = f"at {begins}, priority {summary.priority}"
    if summary.parent:
        rows["parent"] = summary.parent
    return rows


_MOST_CHILDREN = 20


def _lines_around(view: _RunView) -> Iterable[str]:
    """Yield a line for each value that a run has published, its children, and its messages."""
    if view.published:
        yield "published:"
        yield from (f"  {key} = {bounded(value)}" for key, value in view.published.items())
    if view.children:
        yield f"{counted(len(view.children), 'run')} within this one:"
        for child in view.children[:_MOST_CHILDREN]:
            status = _child_status(child, view.at) or "not in this store"
            yield f"  {child.run_id} of {child.workflow}: {status}"
        if len(view.children) > _MOST_CHILDREN:
            yield f"  and others: {suggested('list', '--parent', view.checkpoint.run_id)}"
    if view.mailbox:
        yield f"{counted(len(view.mailbox), 'message')} not taken yet:"
        for one in view.mailbox:
            message, sent = one.message, age(view.at - one.message.sent_at)
            yield f"  {_message_text(message)}{_value_text(one)}, sent {sent}"


def _message_text(message: Message) -> str:
    match message.topic:
        case "cancel":
            return "a request to cancel it"
        case "notice":
            return f"a reason to look at run {message.key}"
        case topic:
            return topic_text(topic)


def _value_text(one: _MessageView) -> str:
    if one.problem is not None:
        return f" ({one.problem})"
    return "" if one.message.topic in (CANCEL, NOTICE) else f" = {bounded(one.value)}"


def _child_status(child: _ChildView, now: float) -> str | None:
    return None if child.info is None else shown_status(child.info, now)


def _view_tree(view: _RunView) -> Tree:
    """Return the view of one run as plain data, with the progress of a job."""
    checkpoint = view.checkpoint
    tree = {
        **orjson.loads(checkpoint.to_json()),
        "dead_letters": view.dead_letters,
        "published": {key: plain_tree(value) for key, value in view.published.items()},
    }
    if view.info is not None:
        now = run_tree(view.info, view.at)
        tree |= {name: now[name] for name in _AS_IT_IS_NOW}
        tree["children"] = [
            {
                "run_id": child.run_id,
                "workflow": child.workflow,
                "status": _child_status(child, view.at),
            }
            for child in view.children
        ]
        tree["mailbox"] = [
            {
                "topic": one.message.topic,
                "key": one.message.key,
                "value": plain_tree(one.value),
                "problem": one.problem,
                "sent_at": iso_time(one.message.sent_at),
            }
            for one in view.mailbox
        ]
    progress = job_progress(checkpoint)
    return tree if progress is None else {**tree, "progress": asdict(progress)}


_AS_IT_IS_NOW = ("status", "waits_for", "due_at", "blocked", "parent", "priority", "resumable")
