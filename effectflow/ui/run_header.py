"""The header that all pages about one run share: where the run is, why, and what can be done."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.requests import Request

from effectflow.checkpoint.entries import CancelRequested
from effectflow.checkpoint.errors import CorruptCheckpoint, after_damage
from effectflow.checkpoint.plan import resumed_at
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.store import is_service, store_errors
from effectflow.observe.explanation import Explanation, explain
from effectflow.observe.mailbox import WaitingMessage, read_requests
from effectflow.observe.operations import Operation
from effectflow.observe.queue_limits import full_queue
from effectflow.observe.recorded_run import RecordedRun
from effectflow.observe.statuses import shown_status
from effectflow.observe.workers import absence
from effectflow.service.pauses import Pause, pauses_in
from effectflow.ui.actions import offered
from effectflow.ui.actions.answering import signals_of
from effectflow.ui.formatting import limits
from effectflow.ui.request_values import run_id_of
from effectflow.ui.site import Page, Site

TABS = (
    ("/run", "Steps"),
    ("/run/history", "History"),
    ("/run/data", "Data"),
    ("/run/drawing", "Drawing"),
)
"""The pages about one run."""


# Without slots, for the cached property.
@dataclass(frozen=True)
class ShownRun:
    """A run as its pages show it.

    Attributes:
        recorded: the run as it was read.
        at: when it was read, in seconds since the epoch.
        pauses: what is paused in its store.
        absent: that no worker may take it, in words.
        limits: what its queue allows while the run waits there, in words.
        requests: the requests to cancel or to pause it that it has not taken.
    """

    recorded: RecordedRun
    at: float
    pauses: Sequence[Pause] = ()
    absent: str = ""
    limits: str = ""
    requests: Sequence[WaitingMessage] = ()

    @cached_property
    def why(self) -> Explanation:
        """Why it is where it is."""
        return explain(self.recorded, self.at, self.pauses, self.absent)


async def read_run(site: Site, request: Request) -> ShownRun:
    """Read the run that a request is about."""
    checkpoints = site.client.checkpoints
    async with checkpoints.store as store:
        recorded = await site.recent_runs.read(run_id_of(request))
        pauses = await pauses_in(store) if is_service(store) else ()
        now, summary = site.now, recorded.info.summary
        queue = None if site.app is None else site.app.queues.get(summary.queue_name)
        with store_errors(store, recorded.run_id):
            absent = await absence(store, recorded.info, now)
            absent = absent or await full_queue(store, recorded.info, queue, now)
        requests: Sequence[WaitingMessage] = ()
        if not summary.status.has_ended:
            requests = await read_requests(checkpoints, recorded.run_id)
    waits = summary.status is RunStatus.PENDING
    allowed = limits(queue) if queue is not None and waits else ""
    return ShownRun(recorded, now, pauses, absent, allowed, requests)


def page_of_run(run: ShownRun, template: str, values: Mapping[str, Any], title: str = "") -> Page:
    """Return a page about a run, by default with its id as the title.

    The template includes `_run_header.html`, which gets its values here.
    """
    recorded = run.recorded
    header = {
        "run": recorded,
        "why": run.why,
        "now": run.at,
        "status": shown_status(recorded.info, run.at),
        "facts": [fact for fact in _facts(run) if fact[1] not in ("", None)],
        "remedy": _remedy_of(recorded),
        "requests": run.requests,
        "undoing": undoing_of(recorded),
        "resume": resume_of(run),
        "actions": [*actions_of(run.why)],
        "tabs": TABS,
    }
    return Page(template, title or recorded.run_id, {**header, **values}, run=recorded.info)


def _facts(run: ShownRun) -> Iterator[tuple[str, Any, str]]:
    """Yield the facts of the header: a name, a value, and what the value is."""
    info, checkpoint, why = run.recorded.info, run.recorded.checkpoint, run.why
    summary, metadata = info.summary, checkpoint.metadata
    yield "workflow", f"{summary.workflow}, version {checkpoint.definition.version}", "text"
    yield "worker" if why.is_held else "last worker", why.owner, "text"
    if why.due_at is not None and why.due_at > run.at:
        yield "next due", why.due_at, "time"
    in_queue = summary.queue_name if run.limits else summary.queue
    yield "queue", f"{in_queue}: {run.limits}" if run.limits else in_queue, "text"
    yield "key", summary.key, "text"
    yield "priority", summary.priority or "", "text"
    yield "tenant", summary.tenant, "text"
    yield "parent", summary.parent, "run"
    # The id of a run may have an @ itself.
    origin, _, number = checkpoint.forked_from.rpartition("@")
    yield "forked from", origin, "run"
    yield "forked after entry", number, "text"
    begun, done = len(metadata.attempts), len(checkpoint.completed_steps)
    attempts = sum(metadata.attempts.values())
    again = f", {attempts:,} attempts" if attempts != begun else ""
    yield "steps", f"{done:,} completed of {begun:,}{again}", "text"
    yield "resumes", metadata.resumes or "", "text"
    yield "entries", f"{info.length:,}", "text"
    yield "created", checkpoint.created_at, "time"
    yield "updated", info.updated_at, "time"


def _remedy_of(run: RecordedRun) -> str:
    """Return what to do about a damaged run, in terms of commands."""
    if not isinstance(run.problem, CorruptCheckpoint) or run.problem.intact is None:
        return "" if run.problem is None else run.problem.hint
    intact = run.problem.intact
    show = shlex.join(["effectflow", "show", run.run_id, "--at", str(intact)])
    repair = shlex.join(["effectflow", "repair", run.run_id])
    return after_damage(f"`{show}`", f"`{repair}`", intact)


@dataclass(frozen=True, slots=True)
class Undoing:
    """How far a run that was cancelled has got with its finalizers and undos.

    Attributes:
        asked: the request.
        step: the step or wait in which the code was; "" if it was in none.
        done: how many steps have completed since.
        open: those in progress.
    """

    asked: CancelRequested
    step: str
    done: int
    open: tuple[Operation, ...]


def undoing_of(run: RecordedRun) -> Undoing | None:
    """Return how far the undos of a cancelled run have got; None if nobody has cancelled it."""
    asked = next((one for one in reversed(run.entries) if isinstance(one, CancelRequested)), None)
    if asked is None:
        return None
    since = [one for one in run.operations if one.kind == "step" and one.newest.began >= asked.at]
    done = sum(one.state == "completed" for one in since)
    return Undoing(
        asked, _step_around(run, asked.place), done, tuple(one for one in since if one.is_open)
    )


def _step_around(run: RecordedRun, place: str) -> str:
    """Return the path of the step or wait that is at a place of the code, or around it."""
    known = {one.path for one in run.operations}
    while place and place not in known:
        place = place.rpartition("/")[0]
    return place


def resume_of(run: ShownRun) -> str:
    """Return what a resume would do, as far as that is known without the code of the workflow."""
    why, checkpoint = run.why, run.recorded.checkpoint
    # Why it has failed tells whether it would fail again.
    has_ended = why.status.has_ended or why.status is RunStatus.FAILED
    if has_ended or why.is_held or why.problem is not None or not checkpoint.history:
        return ""
    kept = len(checkpoint.completed_steps)
    steps = f"the {kept:,} completed step{'' if kept == 1 else 's'}"
    first = resumed_at(checkpoint)
    if why.unknown:
        return (
            f"A resume would keep {steps}, once it is known what became of {why.unknown[0].step}."
        )
    if first is None:
        return f"A resume would keep {steps}; only the code of the workflow tells what comes next."
    return f"A resume would keep {steps} and begin with {first}."


def actions_of(why: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the name and the label of each action that is possible on a run now."""
    signals = [*signals_of(why)]
    for action in offered(why):
        is_answer = action.name == "signal" and len(signals) == 1
        yield action.name, f"Send {signals[0]}" if is_answer else action.label
