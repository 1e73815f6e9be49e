"""`effectflow list`: find runs, and show them as a table."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console

from effectflow.builders.kinds import job_progress
from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    RunInfo,
    RunQuery,
    RunStatus,
    read_checkpoint,
)
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.values import Tree, encode_json, plain_tree
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ExitCode
from effectflow.cli.render import age, cut, say_lines, table
from effectflow.cli.suggestions import message_of, suggested
from effectflow.effects.clock import in_words

CRASHED = "crashed"
"""The status to show for a run that is recorded as running, but is not held by a live process."""


def shown_status(run: RunInfo, now: float) -> str:
    """Return the status of a run as the commands show it: the recorded status, or `crashed`."""
    status = run.summary.status
    return CRASHED if status is RunStatus.RUNNING and not run.is_held(now) else str(status)


STATUSES = tuple(
    shown
    for status in RunStatus
    for shown in ((status, CRASHED) if status is RunStatus.RUNNING else (status,))
)
"""The statuses that `effectflow list` shows and finds."""


@command(ServiceOption)
def list_runs(
    access: Access,
    workflow: Annotated[str | None, typer.Option(help="Show only runs of this workflow.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help=f"Show only runs that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}. Repeat it for "
            "several.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Show only runs updated since then: 30m, 2h or 7d ago, or a date and time."
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Show only runs with this in their context. Repeat it for several. Stores find runs by "
            "their tenant; for other keys, this reads the runs one after the other.",
        ),
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Show only runs within this run.")
    ] = None,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Show only runs that can be resumed.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the table again every two seconds, until Ctrl-C.")
    ] = False,
) -> Answer:
    """List the runs of a store, newest first."""
    if watch and access.as_json:
        raise BadUse("--watch shows a table: leave out --json")
    statuses = _read_statuses(status or ())
    pairs = [_read_pair(text) for text in context or ()]
    filters = _Filters(statuses, tuple(pair for pair in pairs if pair[0] != "tenant"))
    query = RunQuery(
        workflow=workflow,
        statuses=frozenset(
            RunStatus.RUNNING if one == CRASHED else RunStatus(one) for one in statuses
        ),
        parent=parent,
        crashed=filters.only_crashed,
        tenant=dict(pairs).get("tenant"),
        updated_since=None if since is None else _read_moment(since, time.time()),
        resumable=resumable,
        # A store applies its limit before the filters here.
        limit=_PAGE if filters.are_needed else limit + 1,
    )

    progress = _Progress(access) if watch else None

    async def find(_: CheckpointStore) -> Answer:
        return await _find(access, query, filters, limit, progress)

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
_PAGE = 500
"""How many runs to ask the store for at a time, if not all of them are shown."""


async def _find(
    access: Access, query: RunQuery, filters: _Filters, limit: int, progress: _Progress | None
) -> Answer:
    """Return the runs that match. Raise BadUse if the store has no run of the workflow at all."""
    now, store = time.time(), access.store
    runs, problems = list[RunInfo](), list[str]()
    async for info in _in_pages(store, query):
        try:
            if await filters.accept(access, info, now):
                runs.append(info)
        except CheckpointError as error:
            problems.append(f"effectflow: its context is unknown: {message_of(error)}")
        if len(runs) > limit:
            break
    if not runs and query.workflow is not None:
        await _check_is_known(store, query.workflow)
    code = ExitCode.CHECKPOINT_ERROR if problems else ExitCode.DONE
    if len(runs) > limit:
        problems.insert(0, f"There are more than these {limit} runs: --limit shows more.")
        del runs[limit:]
    if runs:
        notes = [
            _note(info, now) or (await progress.of(info, now) if progress else "") for info in runs
        ]
        lines = _table_lines(runs, notes, now)
    elif query == RunQuery(limit=limit + 1):
        lines = ["This store has no runs. `effectflow demo` starts one."]
    else:
        lines = [f"No run matches; `{suggested('list')}` shows all runs."]
    return Answer([run_tree(info, now) for info in runs], lines, problems, code)


async def _in_pages(store: CheckpointStore, query: RunQuery) -> AsyncIterator[RunInfo]:
    """Yield the runs of a query. The next page is read only when it is needed."""
    while page := await store.find(query):
        for info in page:
            yield info
        if len(page) < (query.limit or 0):
            return
        query = replace(query, after=page[-1].place)


@dataclass(frozen=True, slots=True)
class _Filters:
    """What stores do not filter by. They know no status `crashed` among others.

    Attributes:
        statuses: only runs that the commands show with one of these; empty means any.
        context: only runs whose context has these values, as text or JSON, under these keys.
    """

    statuses: frozenset[str]
    context: tuple[tuple[str, str], ...]

    @property
    def only_crashed(self) -> bool:
        """Whether only crashed runs are wanted, which stores find."""
        return self.statuses == frozenset({CRASHED})

    @property
    def are_needed(self) -> bool:
        """Whether the store finds more than what is wanted."""
        mixed = self.statuses & {RunStatus.RUNNING, CRASHED} and not self.only_crashed
        return bool(self.context or mixed)

    async def accept(self, access: Access, info: RunInfo, now: float) -> bool:
        """Return whether a run is wanted. Raise CheckpointError if its context cannot be read."""
        if self.statuses and shown_status(info, now) not in self.statuses:
            return False
        if not self.context:
            return True
        started = await read_checkpoint(access.store, info.run_id, access.seal, at=1)
        texts = _texts_of(started.context)
        return all(value in texts.get(key, ()) for key, value in self.context)


def _texts_of(context: Tree) -> dict[str, tuple[str, ...]]:
    """Return, for each key of a context, the texts that match its value: the value and its JSON."""
    plain = plain_tree(context)
    if not isinstance(plain, dict):
        return {}
    return {
        key: (encode_json(value).decode(), *([value] if isinstance(value, str) else []))
        for key, value in plain.items()
    }


async def _check_is_known(store: CheckpointStore, workflow: str) -> None:
    """Raise BadUse, which lists those of the newest runs, if the store has no run of this workflow."""
    if await store.find(RunQuery(workflow=workflow, limit=1)):
        return
    if newest := await store.find(RunQuery(limit=_PAGE)):
        names = ", ".join(sorted({info.summary.workflow for info in newest}))
        raise BadUse(
            f"this store has no run of workflow {workflow!r}; its newest runs are of: {names}"
        )


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _read_moment(text: str, now: float) -> float:
    """Return the time, in seconds since the epoch, of a date, or of a duration before `now`.

    Raise BadUse for other text.
    """
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if duration is not None:
        return now - float(duration[1]) * _UNITS[duration[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadUse(
            f"--since takes a duration, such as 30m, 2h or 7d, or a time, such as 2026-01-31 or "
            f"2026-01-31T09:30, not {text!r}"
        ) from error


def _read_statuses(texts: Iterable[str]) -> frozenset[str]:
    """Return these statuses. Raise BadUse for one that does not exist."""
    for text in texts:
        if text not in STATUSES:
            raise BadUse(f"--status takes one of {', '.join(STATUSES)}, not {text!r}")
    return frozenset(texts)


def _read_pair(text: str) -> tuple[str, str]:
    """Return the key and the value in `KEY=VALUE`. Raise BadUse for other text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadUse(f"--context takes KEY=VALUE, such as tenant=acme, not {text!r}")
    return key, value


class _Progress:
    """Tells how far running runs have got with the items of their jobs."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[str, tuple[int, str]] = {}

    async def of(self, info: RunInfo, now: float) -> str:
        """Return the progress of a run in words; "" without a job. Read its journal only if it grew."""
        if shown_status(info, now) != RunStatus.RUNNING:
            return ""
        length, text = self._known.get(info.run_id, (0, ""))
        if length != info.length:
            try:
                checkpoint = await read_checkpoint(
                    self._access.store, info.run_id, self._access.seal
                )
            except CheckpointError:
                return ""
            job = job_progress(checkpoint)
            text = "" if job is None else ", ".join(filter(None, (str(job), job.left)))
            self._known[info.run_id] = info.length, text
        return text


def _table_lines(runs: Sequence[RunInfo], notes: Sequence[str], now: float) -> Iterable[str]:
    """Return a table of runs. With names of ordinary length, it fits 80 columns, except for notes."""
    rows = [("RUN", "WORKFLOW", "STATUS", "ENTRIES", "UPDATED", "")]
    for run, note in zip(runs, notes, strict=True):
        status = shown_status(run, now)
        if run.summary.details.dead_letters:
            status += f", {run.summary.details.dead_letters} dead"
        updated = age(now - run.updated_at)
        rows.append((run.run_id, run.summary.workflow, status, str(run.length), updated, note))
    return table(rows)


_QUALIFIED = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")
"""The module of the class of an error."""


def _note(info: RunInfo, now: float) -> str:
    """Return why a run does not continue now, or ""."""
    summary = info.summary
    if summary.status is RunStatus.FAILED:
        return cut(_QUALIFIED.sub("", summary.details.error), 60)
    left = None if summary.due_at is None else summary.due_at - now
    if summary.details.blocked:
        again = "now" if left is None or left <= 0 else f"in {in_words(left)}"
        return cut(f"tried again {again}: {summary.details.blocked}", 80)
    if summary.details.waits_for:
        until = "" if left is None else f", at most {in_words(left)}" if left > 0 else "; is due"
        return f"waits for {summary.details.waits_for}{until}"
    if summary.status is RunStatus.PENDING and left is not None and left > 0:
        return f"begins in {in_words(left)}"
    return ""


def owner_of(info: RunInfo) -> str:
    """Return the process that drives a run, or that drove it last; "" if unknown."""
    text = info.summary.details.owner if info.lease is None else info.lease.owner
    owner = Owner.parse(text)
    return text if owner is None else f"process {owner.pid} on {owner.host.split('/')[0]}"


def run_tree(info: RunInfo, now: float) -> dict[str, Tree]:
    """Return one line about a run as plain data."""
    summary, owner = info.summary, owner_of(info) or None
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
        "dead_letters": summary.details.dead_letters,
        "resumable": info.is_resumable(now),
        "created_at": iso_time(summary.created_at),
        "updated_at": iso_time(info.updated_at),
        "entries": info.length,
    }
