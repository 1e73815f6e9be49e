"""The page of the service: schedules, queues, workers, workflows and jobs; and pauses of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus
from effectflow.checkpoint.store import CheckpointStore, Queue, is_service, store_errors
from effectflow.observe.jobs import progress_of
from effectflow.observe.overview import (
    MOST_COUNTED,
    Overview,
    QueueLoad,
    due_since,
    read_overview,
)
from effectflow.observe.statuses import shown_status
from effectflow.service.environment import AnyWorkflow
from effectflow.service.pauses import PAUSED_KINDS, Pause
from effectflow.service.schedule import Schedule, last_run
from effectflow.ui.formatting import limits
from effectflow.ui.site import Page, Refused, Site

_MOST_ROWS = 200
_MOST_NAMED = 8
_MOST_TICKS = 3

_MOST_JOBS_READ = 5
"""How many journals of running jobs are read for one page."""

_MOST_LOOKED_AT = 200
"""The newest complete runs, of each job and of all workflows, of which dead letters are shown."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule of the App, with its next ticks and its last run, or one that is paused."""

    name: str
    schedule: Schedule[Any] | None
    pause: Pause | None
    ticks: Sequence[datetime] = ()
    last: RunInfo | None = None
    last_status: str = ""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue that the App has, that has something to do, or that is paused."""

    name: str
    limits: str
    load: QueueLoad
    pause: Pause | None

    @property
    def waiting(self) -> int:
        """How many of its runs wait."""
        return sum(self.load.waiting.values())

    @property
    def by_key(self) -> Mapping[str, int]:
        """How many of its runs wait, by their keys."""
        return {key: count for key, count in self.load.waiting.items() if key}


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow of the App, or one that is paused."""

    name: str
    workflow: AnyWorkflow | None
    pause: Pause | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A run with a job."""

    info: RunInfo
    status: str
    progress: str


_Pauses: TypeAlias = Mapping[tuple[str, str], Pause]


async def show_service(site: Site, request: Request) -> Page:
    """Show what drives runs, what waits for that, and what is paused."""
    now = site.now
    async with site.client.checkpoints.store as store:
        with store_errors(store):
            overview = await read_overview(store, now)
            pauses = await _pauses(site, store)
            schedules = _schedules(site, pauses)
            shown = [await _with_runs(site, row) for row in schedules[:_MOST_ROWS]]
            jobs = [row async for row in _jobs(site, store, overview)]
    values = {
        "overview": overview,
        "most_counted": MOST_COUNTED,
        "counts": overview.counts,
        "oldest_due_since": None if overview.oldest_due is None else due_since(overview.oldest_due),
        "schedules": [*shown, *schedules[_MOST_ROWS:]],
        "queues": _queues(site, overview, pauses),
        "workflows": _workflows(site, pauses),
        "jobs": jobs,
        "most_named": _MOST_NAMED,
    }
    return Page("service.html", "Service", values)


async def show_pause(site: Site, request: Request) -> Page:
    """Show what a pause would do, or its end, with the button that does it."""
    site.changeable()
    kind, name = _named(request)
    async with site.client.checkpoints.store as store:
        with store_errors(store):
            overview = await read_overview(store, site.now)
            pause = (await _pauses(site, store)).get((kind, name))
    queue = next((one for one in overview.queues if one.name == name), QueueLoad(name, 0, {}))
    values = {"kind": kind, "name": name, "pause": pause, "load": queue}
    return Page("pause.html", f"{'Unpause' if pause else 'Pause'} {kind} {name}", values)


async def change_pause(site: Site, request: Request) -> Response:
    """Pause what the request names, or let it go on."""
    site.changeable()
    kind, name = _named(request)
    match request.query_params.get("do"):
        case "pause":
            await site.client.pause(**{kind: name})
        case "unpause":
            await site.client.unpause(**{kind: name})
        case _:
            raise Refused("Say what to do: do=pause or do=unpause.")
    return site.redirect(request, "/service")


def _named(request: Request) -> tuple[str, str]:
    """Return the kind and the name of what a request is about."""
    kind, name = request.query_params.get("kind", ""), request.query_params.get("name", "")
    if kind not in PAUSED_KINDS or not name:
        raise Refused(f"Say what to pause: kind={' or '.join(PAUSED_KINDS)}, and its name.")
    return kind, name


async def _pauses(site: Site, store: CheckpointStore) -> _Pauses:
    """Return what is paused, by kind and name. In a store without workers, nothing is."""
    found = await site.client.pauses() if is_service(store) else ()
    return {(one.kind, one.name): one for one in found}


def _names(pauses: _Pauses, kind: str, *known: Iterable[str]) -> list[str]:
    """Return the names that are known of a kind, and those that are paused."""
    return sorted({name for each, name in pauses if each == kind}.union(*known))


def _schedules(site: Site, pauses: _Pauses) -> list[ScheduleRow]:
    known = {} if site.app is None else {one.name: one for one in site.app.schedules}
    return [
        ScheduleRow(name, known.get(name), pauses.get(("schedule", name)))
        for name in _names(pauses, "schedule", known)
    ]


async def _with_runs(site: Site, row: ScheduleRow) -> ScheduleRow:
    """Return the row of a schedule with its next ticks and its last run, if the App has it."""
    if row.schedule is None:
        return row
    ticks = tuple(islice(row.schedule.ticks_after(site.clock.now()), _MOST_TICKS))
    last = await last_run(row.schedule, site.client)
    status = "" if last is None else shown_status(last, site.now)
    return replace(row, ticks=ticks, last=last, last_status=status)


def _queues(site: Site, overview: Overview, pauses: _Pauses) -> list[QueueRow]:
    declared: Mapping[str, Queue] = {} if site.app is None else site.app.queues
    loads = {one.name: one for one in overview.queues}
    rows: list[QueueRow] = []
    for name in _names(pauses, "queue", declared, loads):
        load = loads.get(name, QueueLoad(name, 0, {}))
        allowed = limits(declared[name]) if name in declared else ""
        rows.append(QueueRow(name, allowed, load, pauses.get(("queue", name))))
    # Those with something to do come first, so that the bound hides none of them.
    rows.sort(key=lambda row: (row.pause is None, -row.load.driven - row.waiting))
    return rows


def _workflows(site: Site, pauses: _Pauses) -> list[WorkflowRow]:
    known: Mapping[str, AnyWorkflow] = {} if site.app is None else site.app.workflows
    return [
        WorkflowRow(name, known.get(name), pauses.get(("workflow", name)))
        for name in _names(pauses, "workflow", known)
    ]


async def _jobs(site: Site, store: CheckpointStore, overview: Overview) -> AsyncGenerator[JobRow]:
    """Yield the jobs that have not ended, and the newest that left dead letters.

    Those are among the newest runs of each job of the App, and of all workflows, which may call jobs.
    """
    newest = RunQuery(statuses=frozenset({RunStatus.COMPLETED}), limit=_MOST_LOOKED_AT)
    workflows = () if site.app is None else site.app.workflows.values()
    jobs = [one.name for one in workflows if one.kind == "mapreduce"][:_MOST_ROWS]
    complete = {
        info.run_id: info
        for name in (None, *jobs)
        for info in await store.find(replace(newest, workflow=name))
    }
    left = [info for info in complete.values() if info.summary.details.dead_letters]
    left.sort(key=lambda info: info.place, reverse=True)
    read = 0
    for info in (*overview.jobs, *left[:_MOST_ROWS]):
        status = shown_status(info, site.now)
        progress = ""
        if status == RunStatus.RUNNING and read < _MOST_JOBS_READ:
            progress, read = await progress_of(site.recent_runs, info, site.now), read + 1
        yield JobRow(info, status, progress)
